#!/usr/bin/env bash
# One image for each line of a file of prompts. Run it again after an interruption: images that exist are not made again.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/generate_batch.sh PROMPTS FOLDER [FLAGS OF flux ...]

  PROMPTS   a text file, one prompt per line; blank lines and lines that start with # are left out
  FOLDER    gets one file per prompt: its number, then its first words, as in 0001-a-red-circle.png

All further flags go to flux (see `flux --help`), except: -S N gives the first prompt the seed N, the second N+1,
and so on. Without it every image has a random seed; PNG files say which. Set FLUX_BIN to use another program.

Exit codes: 0 all images are there, 1 some failed (the list is printed), 2 wrong usage, 130 ended by Ctrl-C, 143 by
SIGTERM: no further prompt is begun then.
USAGE
}

usage_error() {
    echo "error: $1" >&2
    usage >&2
    exit 2
}

# The first words of a prompt as a file name: lower-case letters and digits of ASCII, joined by hyphens.
slug() {
    local words
    words=$(printf '%s' "$1" | LC_ALL=C tr '[:upper:]' '[:lower:]' | LC_ALL=C tr -cs 'a-z0-9' '-')
    words=${words#-}
    words=${words:0:48}
    words=${words%-}
    echo "${words:-image}"
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
[[ $# -ge 2 ]] || usage_error "a file of prompts and a folder are needed"
prompts=$1
folder=$2
shift 2
[[ -f "$prompts" && -r "$prompts" ]] || usage_error "cannot read the prompts: $prompts"

seed=
flags=()
while [[ $# -gt 0 ]]; do
    case "$1" in
        -S | --seed)
            [[ $# -ge 2 ]] || usage_error "$1 needs a number"
            seed=$2
            shift
            ;;
        --seed=*) seed=${1#--seed=} ;;
        -S?*) seed=${1#-S} ;;
        -o* | --output | --output=* | -p* | --prompt | --prompt=* | -n* | --count | --count=*) usage_error "$1 is set for each image" ;;
        *) flags+=("$1") ;;
    esac
    shift
done
[[ "$seed" =~ ^[0-9]{0,18}$ ]] || usage_error "the seed is not a number of at most 18 digits: $seed"

# shellcheck source=scripts/find_flux.sh
source "$(dirname "$0")/find_flux.sh"
mkdir -p "$folder"

number=0
made=0
existing=0
failed=()
while IFS= read -r prompt || [[ -n "$prompt" ]]; do
    prompt=${prompt%$'\r'}
    [[ "$prompt" =~ ^[[:space:]]*(#.*)?$ ]] && continue
    number=$((number + 1))
    file="$folder/$(printf '%04d' "$number")-$(slug "$prompt").png"
    if [[ -e "$file" ]]; then # flux gives a file its name when it is complete
        existing=$((existing + 1))
        continue
    fi
    image=("--prompt=$prompt" "--output=$file")
    [[ -n "$seed" ]] && image+=("--seed=$((10#$seed + number - 1))")
    echo "$number: $prompt" >&2
    status=0
    # bash 3 calls an empty list unbound.
    "$flux" ${flags[@]+"${flags[@]}"} "${image[@]}" </dev/null || status=$?
    if [[ $status -eq 0 ]]; then
        made=$((made + 1))
    elif [[ $status -ge 128 ]]; then
        echo "error: stopped by signal $((status - 128)) at prompt $number" >&2
        exit "$status"
    else
        failed+=("$number: $prompt")
    fi
done <"$prompts"

echo "$made made, $existing already there, ${#failed[@]} failed" >&2
if [[ ${#failed[@]} -gt 0 ]]; then
    printf '  failed %s\n' "${failed[@]}" >&2
    exit 1
fi
