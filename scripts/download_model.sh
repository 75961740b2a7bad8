#!/usr/bin/env bash
# Downloads one FLUX.2-klein model into its own folder with `flux download`. Run it again to resume.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/download_model.sh 4b|9b|base-4b|base-9b|9b-kv [FOLDER] [--verify]

  FOLDER     the folder for the model [default: models/klein-4b and so on, in the current folder]
  --verify   also verify the checksums of complete files

Complete files are skipped, and partial files are resumed. A file is called NAME.part until its size and checksum are
verified. If two runs use the same folder, the second waits for the first.

Environment:
  HF_TOKEN       an access token, for gated models (9b); it is sent to the server and never printed
  FLUX_MIRROR    another server with the same paths [default: $HF_ENDPOINT, else https://huggingface.co]; checksums come from
                 the file SHA256SUMS next to model_index.json if it exists, else from the server's metadata
  RETRY_SECONDS  the wait before an interrupted transfer or a failed request is retried; it grows with each retry
                 [default: 2]
  FLUX_BIN       the program to use

Exit codes: 0 complete, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 by SIGTERM.
USAGE
}

# shellcheck source=scripts/printable.sh
source "$(dirname "$0")/printable.sh"

usage_error() {
    echo "error: $(printable "$1")" >&2
    usage >&2
    exit 2
}

model=
folder=
verify=()
for argument in "$@"; do
    case "$argument" in
        -h | --help)
            usage
            exit 0
            ;;
        --verify) verify=(--verify) ;;
        -*) usage_error "unknown flag: $argument" ;;
        *)
            if [[ -z "$model" ]]; then
                model=$argument
            elif [[ -z "$folder" ]]; then
                folder=$argument
            else
                usage_error "unexpected argument: $argument"
            fi
            ;;
    esac
done
[[ -n "$model" ]] || usage_error "the model is missing"
folder=${folder:-models/klein-$model}
if [[ -n "${FLUX_MIRROR:-}" ]]; then
    [[ "$FLUX_MIRROR" =~ ^https?://[^[:space:][:cntrl:]]+$ ]] \
        || usage_error "FLUX_MIRROR is $FLUX_MIRROR, expected http:// or https:// and a server name"
    export HF_ENDPOINT=$FLUX_MIRROR
fi
retry_seconds=${RETRY_SECONDS:-2}
[[ "$retry_seconds" =~ ^([0-9]|[1-5][0-9])(\.[0-9]{1,3})?$ ]] \
    || usage_error "RETRY_SECONDS is $retry_seconds, expected a number of seconds below 60"

# shellcheck source=scripts/find_flux.sh
source "$(dirname "$0")/find_flux.sh"
"$flux" download "$model" --folder "$folder" ${verify[@]+"${verify[@]}"} --retry-wait "$retry_seconds" >/dev/null
echo "complete: $folder"
echo "try: flux -d $folder -p \"a lighthouse in a storm\""
