# Sourced by the scripts that test `flux serve`.
# shellcheck shell=bash

# npm_packages FOLDER PACKAGES...: installs packages for Node once. Fails if they cannot be downloaded or need another Node;
# FOLDER/npm.log has the reason.
npm_packages() {
    local folder=$1 is_done=$1/${2//\//-}.done
    shift
    [[ ! -e "$is_done" ]] || return 0
    timeout 120 npm install --loglevel error --no-audit --no-fund --no-update-notifier --engine-strict \
        --fetch-retries 1 --cache "$folder/npm-cache" --prefix "$folder" "$@" >"$folder/npm.log" 2>&1 && touch "$is_done"
}

# Prints the reason for a failed installation from its log.
why() {
    grep -m 1 -i error "$1" || tail -n 1 "$1" | grep . || echo "timed out"
}

# Starts the server, with the built-in model unless FLAGS name others. Sets `url` and `server`, its process, which ends with
# the script.

# serve PROGRAM LOG [FLAGS]
serve() {
    : >"$2" # so that the log of an earlier server is not read
    "$1" serve --listen 127.0.0.1:0 --device cpu "${@:3}" 2>>"$2" &
    server=$!
    # shellcheck disable=SC2064 # the server that runs now
    trap "kill $server 2>/dev/null || true" EXIT
    for _ in $(seq 100); do
        grep -q '^ready' "$2" && break
        sleep 0.1
    done
    url=$(sed -n 's/^listening on //p' "$2")
    [[ -n "$url" ]] || {
        cat "$2" >&2
        exit 1
    }
}
