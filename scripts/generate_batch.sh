#!/usr/bin/env bash
# Generates one image for each line of a file with `flux batch`, which also reads tables and JSON.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/generate_batch.sh PROMPTS FOLDER [FLAGS OF flux ...]

  PROMPTS   a UTF-8 file with one prompt per line, or recipes in .jsonl or .csv; `-` reads standard input
  FOLDER    the folder for one file per prompt, named by its number and first words, and manifest.jsonl

Run it again after an interruption: existing images are kept. See `flux batch --help` for details. Set FLUX_BIN to use
another program.

Exit codes: 0 all images exist, 1 some failed, 2 wrong usage, 130 ended by Ctrl-C, 143 by SIGTERM.
USAGE
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
if [[ $# -lt 2 ]]; then
    echo "error: expected a file of prompts and a folder" >&2
    usage >&2
    exit 2
fi
# shellcheck source=scripts/printable.sh
source "$(dirname "$0")/printable.sh"
# shellcheck source=scripts/find_flux.sh
source "$(dirname "$0")/find_flux.sh"
prompts=$1
folder=$2
shift 2
case "$prompts" in
    *.[jJ][sS][oO][nN][lL] | *.[cC][sS][vV] | *.[tT][xX][tT] | -) ;;
    *) set -- --format txt "$@" ;;
esac
exec "$flux" batch "$@" -- "$prompts" "$folder"
