#!/usr/bin/env bash
# Fetches one FLUX.2-klein model into a folder of its own, by `flux download`. Run it again to continue.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/download_model.sh 4b|9b|base-4b|base-9b|9b-kv [FOLDER] [--verify]

  FOLDER     where to put the model [default: models/klein-4b and so on, below the current folder]
  --verify   check files that are complete once more, by checksum

A file that is complete is left alone, one that is cut off is continued. A file gets its name when its size and checksum are
right; until then it is called NAME.part. Of two runs into one folder the second waits until the first has ended.

Environment:
  HF_TOKEN       an access token, for models that ask for consent (9b); it is sent to the server and shown nowhere
  FLUX_MIRROR    another server with the same paths [default: $HF_ENDPOINT, else https://huggingface.co]; checksums come from
                 a file SHA256SUMS next to model_index.json where there is one, else from what the server says of its files
  RETRY_SECONDS  how long to wait before a broken transfer is continued, or a server without an answer asked again; longer
                 each time [default: 2]
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
                usage_error "one argument too many: $argument"
            fi
            ;;
    esac
done
[[ -n "$model" ]] || usage_error "no model is named"
folder=${folder:-models/klein-$model}
if [[ -n "${FLUX_MIRROR:-}" ]]; then
    [[ "$FLUX_MIRROR" =~ ^https?://[^[:space:][:cntrl:]]+$ ]] \
        || usage_error "FLUX_MIRROR is $FLUX_MIRROR, expected http:// or https:// and a server"
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
