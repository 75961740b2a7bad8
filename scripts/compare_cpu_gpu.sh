#!/usr/bin/env bash
# Generates an image from the same prompt and seed on the CPU and on the GPU, and prints the differences.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/compare_cpu_gpu.sh [--bound DB] [--against DEVICE] [--keep FOLDER] [FLAGS OF flux ...]

Prints the max and the mean difference of the 8-bit values and the PSNR. Messages about the images are off, as with -q,
unless you pass -v.

  --bound DB        fail if the PSNR is lower [default: 45]
  --against DEVICE  the device to compare with the CPU [default: cuda]
  --keep FOLDER     keep the images in FOLDER, as cpu.png and DEVICE.png

Other flags are passed to flux (see `flux --help`); prompt and seed have defaults. If the prompt or an image is `-`, both
devices read the same standard input. Set FLUX_BIN to use another program.

Exit codes: 0 within the bound, 1 below the bound or a device failed, 2 wrong usage.
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
has_precision=no
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
        --quiet) ;; # the default
        --verbose)
            quiet=()
            flags+=("${words[@]}")
            ;;
        --prompt)
            has_prompt=yes
            # One word, because a prompt may begin with a hyphen.
            flags+=("--prompt=$value")
            ;;
        --seed)
            has_seed=yes
            flags+=("${words[@]}")
            ;;
        --precision)
            has_precision=yes
            flags+=("${words[@]}")
            ;;
        --version | --) usage_error "$1 is not a flag for images" ;;
        --output | --device) usage_error "$1 is set for each device" ;;
        --count) usage_error "$1: the script compares one image" ;;
        --save-*) usage_error "$1 names one file for both devices" ;;
        *) flags+=("${words[@]}") ;;
    esac
    # Both devices read the same standard input. flux reports an error if two flags name it.
    case "$name=$value" in --prompt=- | --input=- | --mask=-) input=- ;; esac
    set -- ${left[@]+"${left[@]}"} # an empty array is unbound in bash 3
done
[[ "$bound" =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage_error "the bound is not a number: $bound"

# shellcheck source=scripts/find_flux.sh
source "$(dirname "$0")/find_flux.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=${folder:-$work}
mkdir -p -- "$folder"

# A repeated flag is an error, so the defaults apply only if the flag is missing.
[[ $has_prompt == yes ]] || flags+=("--prompt=a rocket on a dark blue background")
[[ $has_seed == yes ]] || flags+=("--seed=42")
# The default of some GPUs is 8 bits.
[[ $has_precision == yes ]] || flags+=("--precision=native")
if [[ $input == - ]]; then
    input=$work/input
    cat >"$input"
fi

other="$folder/${against//[^a-z0-9]/-}.png"
[[ "$against" == cpu ]] && other="$folder/cpu-again.png"
"$flux" "${flags[@]}" ${quiet[@]+"${quiet[@]}"} --device cpu "--output=$folder/cpu.png" <"$input"
"$flux" "${flags[@]}" ${quiet[@]+"${quiet[@]}"} --device "$against" "--output=$other" <"$input"
"$flux" compare --min-psnr "$bound" -- "$folder/cpu.png" "$other"
