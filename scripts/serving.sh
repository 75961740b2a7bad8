# Starts `flux serve`, with the built-in model unless FLAGS name others, for scripts that source this file. Sets `url` and
# `server`, its process, which ends with the script.
# shellcheck shell=bash

# serve PROGRAM LOG [FLAGS]
serve() {
    "$1" serve --listen 127.0.0.1:0 --device cpu "${@:3}" 2>"$2" &
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
