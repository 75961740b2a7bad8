#!/usr/bin/env bash
# Draws the same prompt and seed on the CPU and on the GPU, and prints how far the images are apart.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/compare_cpu_gpu.sh [--bound DB] [--against DEVICE] [--keep FOLDER] [FLAGS OF flux ...]

Prints the largest and the mean difference of the 8-bit values and the PSNR; of the images themselves nothing, as with -q,
unless -v is given.

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
# shellcheck source=scripts/flags.sh
source "$(dirname "$0")/flags.sh"

usage_error() {
    echo "error: $(printable "$1")" >&2
    usage >&2
    exit 2
}

own_flags=(--bound --against --keep)
bound=45
against=cuda
folder=
quiet=(--quiet)
has_prompt=no
has_seed=no
input=/dev/null
flags=()
while [[ $# -gt 0 ]]; do
    read_flag "$@"
    case "$name" in
        --help)
            usage
            exit 0
            ;;
        --bound) bound=$value ;;
        --against) against=$value ;;
        --keep) folder=$value ;;
        --quiet) ;; # as it is anyhow
        --verbose)
            quiet=()
            flags+=("${words[@]}")
            ;;
        --prompt)
            has_prompt=yes
            # As one word: a prompt may begin with a hyphen, and is no flag then.
            flags+=("--prompt=$value")
            ;;
        --seed)
            has_seed=yes
            flags+=("${words[@]}")
            ;;
        --version | --) usage_error "$1 is no flag for images" ;;
        --output | --device) usage_error "$1 is set for each device" ;;
        --count) usage_error "$1: one image is compared" ;;
        --save-*) usage_error "$1 names one file for both devices" ;;
        *) flags+=("${words[@]}") ;;
    esac
    # Both devices read the prompt or the image that comes from standard input. Of two flags that name it flux tells.
    case "$name=$value" in --prompt=- | --input=- | --mask=-) input=- ;; esac
    set -- ${left[@]+"${left[@]}"} # bash 3 calls an empty list unbound
done
[[ "$bound" =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage_error "the bound is not a number: $bound"

# shellcheck source=scripts/find_flux.sh
source "$(dirname "$0")/find_flux.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=${folder:-$work}
mkdir -p -- "$folder"

# A flag that comes twice is an error of flux, so the defaults step back.
[[ $has_prompt == yes ]] || flags+=("--prompt=a rocket on a dark blue background")
[[ $has_seed == yes ]] || flags+=("--seed=42")
if [[ $input == - ]]; then
    input=$work/input
    cat >"$input"
fi

other="$folder/${against//[^a-z0-9]/-}.png"
[[ "$against" == cpu ]] && other="$folder/cpu-again.png"
"$flux" "${flags[@]}" ${quiet[@]+"${quiet[@]}"} --device cpu "--output=$folder/cpu.png" <"$input"
"$flux" "${flags[@]}" ${quiet[@]+"${quiet[@]}"} --device "$against" "--output=$other" <"$input"
"$flux" compare --min-psnr "$bound" -- "$folder/cpu.png" "$other"
