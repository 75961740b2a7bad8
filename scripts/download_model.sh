#!/usr/bin/env bash
# Fetches one FLUX.2-klein model: configs, tokenizer and weights, each checked by size and checksum. Run it again to continue.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/download_model.sh 4b|9b|base-4b|base-9b [FOLDER] [--verify]

  FOLDER     where to put the model [default: models/klein-4b and so on, below the current folder]
  --verify   check files that are complete once more, by checksum

A file that is complete is left alone, one that is cut off is continued. A file gets its name when its size and checksum are
right; until then it is called NAME.part. Of two runs into one folder the second waits until the first has ended.

Environment:
  HF_TOKEN       an access token, for models that ask for consent (9b); it is sent to the server and shown nowhere
  FLUX_MIRROR    another server with the same paths [default: https://huggingface.co]; checksums come from a file
                 SHA256SUMS next to model_index.json where there is one, else from the server's ETag
  RETRY_SECONDS  how long to wait before a broken transfer is continued, or a server without an answer asked again
                 [default: 2]

Needs curl and sha256sum or shasum. Exit codes: 0 complete, 1 failed, 2 wrong usage.
USAGE
}

# shellcheck source=scripts/printable.sh
source "$(dirname "$0")/printable.sh"

fail() { # MESSAGE [HINT]
    echo "error: $(printable "$1")" >&2
    if [[ $# -gt 1 ]]; then echo "  hint: $2" >&2; fi
    exit 1
}

usage_error() {
    echo "error: $(printable "$1")" >&2
    usage >&2
    exit 2
}

model=
folder=
verify=no
for argument in "$@"; do
    case "$argument" in
        -h | --help)
            usage
            exit 0
            ;;
        --verify) verify=yes ;;
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
case "$model" in
    4b) repository=FLUX.2-klein-4B ;;
    9b) repository=FLUX.2-klein-9B ;;
    base-4b) repository=FLUX.2-klein-base-4B ;;
    base-9b) repository=FLUX.2-klein-base-9B ;;
    "") usage_error "no model is named" ;;
    *) usage_error "unknown model: $model" ;;
esac
folder=${folder:-models/klein-$model}
mirror=${FLUX_MIRROR:-https://huggingface.co}
mirror=${mirror%/}
[[ "$mirror" =~ ^https?://[^[:space:][:cntrl:]]+$ ]] || usage_error "FLUX_MIRROR is $mirror, expected http:// or https:// and a server"
retry_seconds=${RETRY_SECONDS:-2}
[[ "$retry_seconds" =~ ^[0-9]{1,5}(\.[0-9]{1,3})?$ ]] || usage_error "RETRY_SECONDS is $retry_seconds, expected a number of seconds"
page="$mirror/black-forest-labs/$repository"
base="$page/resolve/main"

command -v curl >/dev/null || fail "curl is not there" "install it, e.g. with \`apt install curl\`"
# shellcheck source=scripts/sha256.sh
source "$(dirname "$0")/sha256.sh"
if command -v sha1sum >/dev/null; then sha1() { sha1sum; }; else sha1() { shasum -a 1; }; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bytes_of() { wc -c <"$1" | tr -d '[:space:]'; }

# The token goes to curl in a file that only this user can read: a command line is visible to everyone on the machine.
# curl drops the header when it is sent on to another host.
touch "$work/curlrc"
chmod 600 "$work/curlrc"
if [[ -n "${HF_TOKEN:-}" ]]; then
    [[ "$HF_TOKEN" =~ ^[A-Za-z0-9_.-]+$ ]] || fail "HF_TOKEN has characters that no token has" "is there a space or a line end in it?"
    case "$mirror" in
        https://* | http://localhost | http://localhost:* | http://127.0.0.1 | http://127.0.0.1:*)
            printf 'header = "Authorization: Bearer %s"\n' "$HF_TOKEN" >"$work/curlrc"
            ;;
        *) echo "note: HF_TOKEN is not sent, because $mirror is not encrypted" >&2 ;;
    esac
fi
# An address is taken as it is: brackets and braces stand for themselves.
fetch() { curl --config "$work/curlrc" --globoff --connect-timeout 30 --speed-limit 1 --speed-time 60 "$@"; }

# Runs a command until it succeeds, five times at most.
retry() { # COMMAND...
    local attempt
    for attempt in 1 2 3 4 5; do
        if "$@"; then return; fi
        if [[ $attempt -lt 5 ]]; then sleep "$retry_seconds"; fi
    done
    return 1
}

free_bytes() { echo $(($(df -Pk "$folder" | awk 'NR == 2 { print $4 }') * 1024)); }

passes() { [[ "$1" == 429 || "$1" == 5?? ]]; } # STATUS: a server that is busy

# Says what a status means that is not 200 or 206.
refused() { # STATUS FILE
    case "$1" in
        401) fail "the server asks who you are (401): $2" \
            "accept the licence at $page, create a read token in your account, and set HF_TOKEN to it" ;;
        403) fail "the server denies access (403): $2" "does HF_TOKEN belong to an account that accepted the licence at $page?" ;;
        404) fail "the server has no such file (404): $base/$2" "is FLUX_MIRROR right, and has the mirror this model?" ;;
        *) fail "the server answers with status $1: $base/$2" "try again later; the download is continued then" ;;
    esac
}

header() { tr -d '\r' <"$work/headers" | awk -v name="$1" -F': *' 'tolower($1) == name { value = $2 } END { print value }'; }

# Asks for the headers of a file; fails where another attempt may help. Sets: answer, which is that of curl, status, and
# next, the address that we are sent on to.
ask_once() { # URL
    local found
    answer=0
    found=$(fetch --silent --show-error --head --output "$work/headers" --write-out '%{http_code} %{redirect_url}' "$1") || answer=$?
    status=${found%% *} next=${found#* }
    [[ $answer -eq 0 || $answer -eq 23 ]] && ! passes "$status"
}

# Asks for size and checksum of a file. Sets: status, and when that is 200 size, sum_kind (sha256, git or none) and sum.
ask() { # FILE
    local url="$base/$1" answer next etag
    for _ in 1 2 3 4 5; do
        retry ask_once "$url" || true
        [[ $answer -ne 23 ]] || fail "cannot write $work/headers" "is the disk full? TMPDIR names another folder for small files"
        [[ $answer -eq 0 ]] || fail "cannot reach $mirror (curl $answer)" "check the network, or FLUX_MIRROR; the download is continued when it is run again"
        if passes "$status"; then refused "$status" "$1"; fi
        # The hub sends large files on to another server, but says itself what they are: the other may not answer a HEAD.
        if [[ "$status" == 30? && -n "$(header x-linked-size)" ]]; then status=200; fi
        if [[ "$status" != 30? ]]; then break; fi
        [[ "$next" == "$mirror"/* ]] || fail "$mirror sends us on to another server for $1" "is FLUX_MIRROR right?"
        url=$next
    done
    [[ "$status" == 200 ]] || return 0
    size=$(header x-linked-size)
    [[ -n "$size" ]] || size=$(header content-length)
    etag=$(header x-linked-etag)
    [[ -n "$etag" ]] || etag=$(header etag)
    etag=${etag#W/}
    etag=${etag//\"/}
    [[ "$size" =~ ^(0|[1-9][0-9]{0,14})$ ]] \
        || fail "the server does not tell the size of $1, but \`${size:0:40}\`" "is FLUX_MIRROR right?"
    sum=$(awk -v name="$1" '$2 == name || $2 == "*" name { print $1 }' "$work/SHA256SUMS" | tr 'A-F' 'a-f')
    if [[ -n "$sum" ]]; then
        [[ "$sum" =~ ^[0-9a-f]{64}$ ]] || fail "SHA256SUMS has no checksum for $1, but \`${sum:0:80}\`" "is FLUX_MIRROR right?"
        sum_kind=sha256
    elif [[ "$etag" =~ ^[0-9a-f]{64}$ ]]; then
        sum_kind=sha256 sum=$etag
    elif [[ "$etag" =~ ^[0-9a-f]{40}$ ]]; then
        sum_kind=git sum=$etag # small files: the name that git gives to the content
    else
        sum_kind=none sum=
    fi
}

checksum() { # KIND PATH
    case "$1" in
        sha256) sha256 <"$2" ;;
        git) { printf 'blob %s\0' "$(bytes_of "$2")" && cat "$2"; } | sha1 ;;
        none) echo ;;
    esac | cut -d ' ' -f 1
}

# Fetches one file unless it is complete. Needs what `ask` found.
get() { # FILE
    local file=$1 path="$folder/$1" part="$folder/$1.part" attempt have answer
    if [[ -f "$path" && "$(bytes_of "$path")" == "$size" ]]; then
        if [[ $verify == no || "$(checksum "$sum_kind" "$path")" == "$sum" ]]; then
            echo "$file: complete"
            return
        fi
        echo "$file: wrong checksum, fetching it again" >&2
    fi
    mkdir -p "$(dirname "$path")"
    for attempt in 1 2 3 4 5; do
        have=0
        if [[ -f "$part" ]]; then have=$(bytes_of "$part"); fi
        if [[ $have -gt $size ]]; then
            rm -f "$part"
            have=0
        fi
        if [[ $have -lt $size || $size -eq 0 ]]; then
            echo "$file: $have of $size bytes are there"
            answer=0
            status=$(fetch "${progress[@]}" --location --fail --continue-at - --output "$part" --write-out '%{http_code}' "$base/$file") || answer=$?
            # The server cannot continue from here, so from the start. For curl that is a success, or in older ones 22.
            if [[ "$status" == 416 ]]; then
                rm -f "$part"
                continue
            fi
            case "$answer" in
                0 | 18 | 28 | 52 | 56 | 92) ;; # done, or the connection broke: the part tells
                22) if ! passes "$status"; then refused "$status" "$file"; fi ;;
                23) fail "cannot write $part: $((size - have)) bytes of it are missing, $(free_bytes) bytes are free" \
                    "free some space, and run the same command again to go on" ;;
                33 | 36) rm -f "$part" ;; # a server that cannot continue: from the start
                *) echo "$file: curl failed with $answer, attempt $attempt of 5" >&2 ;;
            esac
            if [[ ! -f "$part" || "$(bytes_of "$part")" != "$size" ]]; then
                if [[ $attempt -lt 5 ]]; then sleep "$retry_seconds"; fi
                continue
            fi
        fi
        if [[ "$(checksum "$sum_kind" "$part")" == "$sum" ]]; then
            mv "$part" "$path"
            if [[ $sum_kind == none ]]; then echo "$file: fetched, only its size was checked" >&2; else echo "$file: fetched and checked"; fi
            return
        fi
        echo "$file: wrong checksum, fetching it from the start" >&2
        rm -f "$part"
    done
    fail "could not fetch $file: after 5 attempts it is not complete" "run the same command again to go on"
}

if [[ -t 2 ]]; then progress=(--progress-bar); else progress=(--silent --show-error); fi
mkdir -p "$folder" || fail "cannot create $folder" "name another folder"

# Two runs that write one file would damage it. The system ends a lock with the process that holds it, so none is left
# behind. Curl holds it too: a transfer that outlives a killed run is waited for. A Mac has no flock, but Perl.
lock() { # -n, which fails with 1 where there is a lock, or -x, which waits
    if command -v flock >/dev/null; then
        flock "$1" 9
    else
        perl -e 'use Fcntl ":flock"; open(my $folder, "<&=", 9) or exit 66;
            flock($folder, $ARGV[0] eq "-n" ? LOCK_EX | LOCK_NB : LOCK_EX) or exit 1' -- "$1"
    fi
}
exec 9<"$folder"
locked=0
lock -n || locked=$?
if [[ $locked -eq 1 ]]; then
    echo "waiting until another download into $folder has ended" >&2
    lock -x
elif [[ $locked -ne 0 ]]; then
    echo "note: $folder cannot be locked, so start no second download into it" >&2
fi

: >"$work/SHA256SUMS"
ask SHA256SUMS
if [[ "$status" == 200 ]]; then
    retry fetch --silent --show-error --location --fail --output "$work/SHA256SUMS" "$base/SHA256SUMS" \
        || fail "could not fetch SHA256SUMS" "run the same command again to go on"
fi

# Small files first: what the program reads, then what other programs read and a repository may lack.
for file in model_index.json scheduler/scheduler_config.json text_encoder/config.json tokenizer/tokenizer.json \
    transformer/config.json vae/config.json; do
    ask "$file"
    [[ "$status" == 200 ]] || refused "$status" "$file"
    get "$file"
done
for file in LICENSE.md text_encoder/generation_config.json tokenizer/tokenizer_config.json tokenizer/vocab.json tokenizer/merges.txt \
    tokenizer/added_tokens.json tokenizer/special_tokens_map.json tokenizer/chat_template.jinja; do
    ask "$file"
    if [[ "$status" == 200 ]]; then get "$file"; fi
done

# Weights: one file, or the shards that an index names, which are the values of its `weight_map`. Where that is not a map of
# strings a `?` is among them, which is no name.
shards_of() { # INDEX
    awk 'BEGIN { RS = "\"" } # so every second record is a string
        NR % 2 == 0 {
            word = $0
            if (state == "value") { print; state = "end" } else if (state == "key") { state = "colon" }
            next
        }
        {
            gsub(/[ \t\r\n]/, "")
            if (state == "" && word == "weight_map" && $0 == ":{") state = "key"
            else if (state == "colon" && $0 == ":") state = "value"
            else if (state == "end" && $0 == ",") state = "key"
            else if (state == "end" && $0 ~ /^}/) exit
            else if (state != "") { print "?"; exit }
        }' "$1" | sort -u
}
weights=()
for stem in text_encoder/model transformer/diffusion_pytorch_model vae/diffusion_pytorch_model; do
    ask "$stem.safetensors.index.json"
    if [[ "$status" == 200 ]]; then
        get "$stem.safetensors.index.json"
        shards=$(shards_of "$folder/$stem.safetensors.index.json")
        [[ -n "$shards" ]] || fail "$stem.safetensors.index.json names no weights" "delete it and run the same command again"
        while IFS= read -r shard; do
            [[ "$shard" =~ ^[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors$ ]] \
                || fail "$stem.safetensors.index.json names \`${shard:0:80}\`, which is no name for a file of weights beside it" \
                    "is FLUX_MIRROR right? delete the index and run the same command again"
            weights+=("$(dirname "$stem")/$shard")
        done <<<"$shards"
    else
        weights+=("$stem.safetensors")
    fi
done

missing=0
for file in "${weights[@]}"; do
    ask "$file"
    [[ "$status" == 200 ]] || refused "$status" "$file"
    if [[ ! -f "$folder/$file" ]]; then missing=$((missing + size)); fi
    if [[ -f "$folder/$file.part" ]]; then missing=$((missing - $(bytes_of "$folder/$file.part"))); fi
done
free=$(free_bytes)
[[ $missing -le $free ]] || fail "$missing bytes are missing, $free are free in $folder" "free some space, or name a folder on another disk"
for file in "${weights[@]}"; do
    ask "$file"
    [[ "$status" == 200 ]] || refused "$status" "$file"
    get "$file"
done
echo "complete: $folder"
echo "try: flux -d $folder -p \"a lighthouse in a storm\""
