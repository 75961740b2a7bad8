#!/usr/bin/env bash
# One image for each line of a file: `flux batch`, which takes tables and JSON, too.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/generate_batch.sh PROMPTS FOLDER [FLAGS OF flux ...]

  PROMPTS   a file in UTF-8: a prompt per line, or with the ending .jsonl or .csv recipes; `-` reads standard input
  FOLDER    gets one file per prompt, with its number and its first words, and manifest.jsonl

Run it again after an interruption: images that are there are not made again. `flux batch --help` tells all of it. Set
FLUX_BIN to use another program.

Exit codes: 0 all images are there, 1 some failed, 2 wrong usage, 130 ended by Ctrl-C, 143 by SIGTERM.
USAGE
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
if [[ $# -lt 2 ]]; then
    echo "error: a file of prompts and a folder are needed" >&2
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
