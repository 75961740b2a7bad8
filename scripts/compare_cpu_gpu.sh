#!/usr/bin/env bash
# Draws the same prompt and seed on the CPU and on the GPU, and prints how far the images are apart.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/compare_cpu_gpu.sh [--bound DB] [--against DEVICE] [--keep FOLDER] [FLAGS OF flux ...]

Prints the largest and the mean difference of the 8-bit values and the PSNR.

  --bound DB        fail when the PSNR is lower [default: 45]
  --against DEVICE  what to compare the CPU with [default: cuda]
  --keep FOLDER     keep the images there, as cpu.png and DEVICE.png

All further flags go to flux (see `flux --help`); prompt and seed have defaults. The prompt or an image may be `-`, and both
devices get what standard input holds. Set FLUX_BIN to use another program.

Exit codes: 0 within the bound, 1 not, or a device failed, 2 wrong usage.
USAGE
}

# shellcheck source=scripts/printable.sh
source "$(dirname "$0")/printable.sh"

usage_error() {
    echo "error: $(printable "$1")" >&2
    usage >&2
    exit 2
}

bound=45
against=cuda
folder=
flags=()
while [[ $# -gt 0 ]]; do
    case "$1" in
        -h | --help)
            usage
            exit 0
            ;;
        --bound | --against | --keep)
            [[ $# -ge 2 ]] || usage_error "$1 needs a value"
            case "$1" in
                --bound) bound=$2 ;;
                --against) against=$2 ;;
                --keep) folder=$2 ;;
            esac
            shift
            ;;
        # As one word: a prompt may begin with a hyphen, and is no flag then.
        -p | --prompt)
            [[ $# -ge 2 ]] || usage_error "$1 needs a value"
            flags+=("--prompt=$2")
            shift
            ;;
        -o* | --output | --output=* | --device | --device=*) usage_error "$1 is set for each device" ;;
        -n* | --count | --count=*) usage_error "$1: one image is compared" ;;
        *) flags+=("$1") ;;
    esac
    shift
done
[[ "$bound" =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage_error "the bound is not a number: $bound"

# shellcheck source=scripts/find_flux.sh
source "$(dirname "$0")/find_flux.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=${folder:-$work}
mkdir -p -- "$folder"

# A flag that comes twice is an error of flux, so the defaults step back.
has() {
    local flag
    for flag in ${flags[@]+"${flags[@]}"}; do # bash 3 calls an empty list unbound
        case "$flag" in "$1" | "$1"?* | "$2" | "$2"=*) return 0 ;; esac
    done
    return 1
}
has -p --prompt || flags+=("--prompt=a rocket on a dark blue background")
has -S --seed || flags+=("--seed=42")

# Both devices read the prompt or the image that comes from standard input. Of two flags that name it flux tells.
input=/dev/null
for flag in "${flags[@]}"; do
    case "$flag" in
        - | -p- | -i- | --prompt=- | --input=- | --mask=-)
            input=$work/input
            cat >"$input"
            break
            ;;
    esac
done

other="$folder/${against//[^a-z0-9]/-}.png"
[[ "$against" == cpu ]] && other="$folder/cpu-again.png"
"$flux" "${flags[@]}" --quiet --device cpu "--output=$folder/cpu.png" <"$input"
"$flux" "${flags[@]}" --quiet --device "$against" "--output=$other" <"$input"
"$flux" compare --min-psnr "$bound" -- "$folder/cpu.png" "$other"
