#!/usr/bin/env bash
# One image for each line of a file of prompts. Run it again after an interruption: images that exist are not made again.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/generate_batch.sh PROMPTS FOLDER [FLAGS OF flux ...]

  PROMPTS   a text file in UTF-8, one prompt of at most 64 KiB per line; `-` reads standard input; blank lines and
            lines that start with # are left out
  FOLDER    gets one file per prompt: its number, its first words, and a key, as in 0001-a-red-circle-1a2b3c4d5e6f7a8b.png

The key is the start of a SHA-256 over the prompt, the seed, the flags, what is in the files that they read (images, masks,
adapters, tensors) and FLUX_MODEL. An image is made unless one with its words and key is there: what changes in them makes
another image. Flags that only change what is printed do not count. Images of earlier versions of this script, whose keys
have 8 digits, do not count as made.

All further flags go to flux (see `flux --help`), except: -S N gives the first prompt the seed N, the second N+1,
and so on. Without it every image has a random seed; PNG files say which. Set FLUX_BIN to use another program.

Exit codes: 0 all images are there, 1 some failed (the list is printed), also where flux refuses a prompt, 2 wrong usage, also
where flux refuses the flags, 130 ended by Ctrl-C, 143 by SIGTERM: no further prompt is begun then.
USAGE
}

usage_error() {
    echo "error: $1" >&2
    usage >&2
    exit 2
}

fail() { # MESSAGE HINT
    printf 'error: %s\n  hint: %s\n' "$1" "$2" >&2
    exit 2
}

# shellcheck source=scripts/printable.sh
source "$(dirname "$0")/printable.sh"
# shellcheck source=scripts/sha256.sh
source "$(dirname "$0")/sha256.sh"
# shellcheck source=scripts/flags.sh
source "$(dirname "$0")/flags.sh"

# The first words of a prompt as a file name: lower-case letters and digits of ASCII, joined by hyphens.
slug() {
    local words
    words=$(printf '%s' "$1" | LC_ALL=C tr '[:upper:]' '[:lower:]' | LC_ALL=C tr -cs 'a-z0-9' '-')
    words=${words#-}
    words=${words:0:48}
    words=${words%-}
    echo "${words:-image}"
}

# Copies the prompts from standard input as lines in UTF-8 that end with a line feed alone. Nothing is drawn before all
# of them are right.
read_prompts() { # NAME COPY
    local name copy=$2 line
    local most_bytes=65536 most_in_all=16777216 # what flux takes as a prompt; a bound for an input without an end
    # UTF-8 without NUL, byte by byte, so that it needs no locale.
    local utf8=$'([\x01-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}'
    utf8+=$'|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}'
    utf8+=$'|\xf4[\x80-\x8f][\x80-\xbf]{2})*'
    name=$(printable "$1")
    # The first line may begin with a byte order mark, and lines end with CR LF in files from Windows.
    head -c $((most_in_all + 1)) | LC_ALL=C sed -e $'1s/^\xef\xbb\xbf//' -e $'s/\r$//' >"$copy" \
        || fail "cannot copy $name" "is the disk full?"
    [[ $(wc -c <"$copy") -le $most_in_all ]] || fail "$name is longer than 16 MiB" "give the prompts in several files"
    line=$({ LC_ALL=C grep -n -a -v -x -E -e "$utf8" "$copy" || true; } | LC_ALL=C awk -F: 'NR == 1 { print $1 }')
    [[ -z "$line" ]] || fail "line $line of $name is not UTF-8, or has a NUL byte" "save the prompts as plain text in UTF-8"
    line=$(LC_ALL=C awk -v most="$most_bytes" 'length($0) > most { print NR; exit }' "$copy")
    [[ -z "$line" ]] || fail "line $line of $name is longer than 64 KiB" "flux takes no longer prompts: shorten it"
}

# A short text that changes with any of its arguments.
key_of() {
    local sum
    sum=$(printf '%s\0' "$@" | sha256)
    echo "${sum:0:16}"
}

# Adds what a file that a flag names holds to the recipe, so that a file that has changed makes another image. What is
# missing, or no file, flux refuses. An adapter may be named with its strength, as FILE:0.5, or be a folder, and what its
# adapter_config.json says changes images too.
count_contents() { # FLAG FILE
    local file=$2 beside
    [[ "$file" != - ]] || usage_error "standard input is no image here: name a file"
    if [[ "$1" == --lora ]]; then
        [[ -e "$file" ]] || file=${file%:*}
        for beside in "$file"/* "$(dirname -- "$file")/adapter_config.json"; do count_file "$beside"; done
    fi
    count_file "$file"
}

count_file() {
    if [[ -f "$1" ]]; then recipe+=("$(sha256 <"$1")"); fi
}

# Whether a folder has the image of these words and this key, under any number: a line more or less above it changes that.
has_image() { # WORDS-KEY
    local file
    for file in "$folder"/[0-9]*-"$1.png"; do
        if [[ -e "$file" ]]; then return; fi # flux gives a file its name when it is complete
    done
    return 1
}

# Keys of 8 digits were checksums that two prompts of a long list may share. What was made then is left alone.
note_older_images() {
    local file count=0
    for file in "$folder"/[0-9]*-????????.png; do
        if [[ "$file" =~ -[0-9a-f]{8}\.png$ ]]; then count=$((count + 1)); fi
    done
    [[ $count -eq 0 ]] || echo "note: $count images in $(printable "$folder") are of an earlier version of this script, with keys" \
        "of 8 digits; they are left alone and do not count as made" >&2
}

# Whether flux refuses this prompt, and not the flags that came with it. It does so before any work.
is_refused_prompt() {
    local said
    said=$("$flux" ${flags[@]+"${flags[@]}"} "${image[@]}" <<<"$prompt" 2>&1 >/dev/null) || true
    grep -q -x -e '  in: --prompt' <<<"$said"
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
if [[ "$prompts" != - ]]; then
    [[ -r "$prompts" && ! -d "$prompts" ]] || usage_error "cannot read the prompts: $(printable "$prompts")"
fi

seed=
flags=()
recipe=("${FLUX_MODEL:-}") # what the image depends on, beside the prompt and the seed
while [[ $# -gt 0 ]]; do
    read_flag "$@"
    case "$name" in
        --seed) seed=$value ;;
        --help)
            usage
            exit 0
            ;;
        --version | --) usage_error "$1 is no flag for images" ;;
        --output | --prompt | --count)
            usage_error "$(printable "$1") is set for each image"
            ;;
        --save-*) usage_error "$(printable "$1") names one file for all images" ;;
        --quiet | --verbose | --timings | --progress | --print-path | --no-clobber | --force) flags+=("${words[@]}") ;;
        *)
            flags+=("${words[@]}")
            recipe+=("$name=$value")
            case "$name" in --input | --mask | --lora | --noise | --latents | --embeddings) count_contents "$name" "$value" ;; esac
            ;;
    esac
    set -- ${left[@]+"${left[@]}"} # bash 3 calls an empty list unbound
done
if [[ "$seed" == random || "$seed" == -1 ]]; then seed=; fi # as flux has it
[[ "$seed" =~ ^[0-9]{0,18}$ ]] || usage_error "the seed is not a number of at most 18 digits: $(printable "$seed")"

# shellcheck source=scripts/find_flux.sh
source "$(dirname "$0")/find_flux.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
name="standard input"
if [[ "$prompts" != - ]]; then
    name=$prompts
    exec <"$prompts"
fi
read_prompts "$name" "$work/prompts"
mkdir -p -- "$folder"
note_older_images

number=0
made=0
existing=0
refused=0
failed=()
: >"$work/seen"
while IFS= read -r prompt || [[ -n "$prompt" ]]; do
    [[ "$prompt" =~ ^[[:space:]]*(#.*)?$ ]] && continue
    number=$((number + 1))
    # A prompt that comes twice gives two images, also with random seeds.
    seed_flag=()
    which="random $(LC_ALL=C grep -c -x -F -e "$prompt" "$work/seen" || true)"
    printf '%s\n' "$prompt" >>"$work/seen"
    if [[ -n "$seed" ]]; then
        which=$((10#$seed + number - 1))
        seed_flag=("--seed=$which")
    fi
    name="$(slug "$prompt")-$(key_of "$prompt" "$which" "${recipe[@]}")"
    if has_image "$name"; then
        existing=$((existing + 1))
        continue
    fi
    file="$folder/$(printf '%04d' "$number")-$name.png"
    shown="$number: $(printable "${prompt:0:200}")"
    if [[ ${#prompt} -gt 200 ]]; then shown+=" ..."; fi
    echo "$shown" >&2
    status=0
    # The prompt `-` is what flux reads from its standard input.
    image=("--prompt=$prompt" "--output=$file" ${seed_flag[@]+"${seed_flag[@]}"})
    "$flux" ${flags[@]+"${flags[@]}"} "${image[@]}" <<<"$prompt" || status=$?
    if [[ $status -eq 0 ]]; then
        made=$((made + 1))
    elif [[ $status -ge 128 ]]; then
        echo "error: stopped by signal $((status - 128)) at prompt $number" >&2
        exit "$status"
    # Flags that an image was made with, now or earlier, are right.
    elif [[ $status -eq 2 && $made -eq 0 && $existing -eq 0 && $refused -eq 0 ]] && ! is_refused_prompt; then
        fail "flux refuses the flags, see its message above; no further prompt is begun" "\`flux --help\` lists the flags"
    else
        if [[ $status -eq 2 ]]; then refused=$((refused + 1)); fi
        failed+=("$shown")
    fi
done <"$work/prompts"

echo "$made made, $existing already there, ${#failed[@]} failed" >&2
if [[ ${#failed[@]} -gt 0 ]]; then
    printf '  failed %s\n' "${failed[@]}" >&2
    exit 1
fi
