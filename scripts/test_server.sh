#!/usr/bin/env bash
# Runs the clients that people have against `flux serve`.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/serving.sh
. scripts/serving.sh

usage() {
    cat <<END
usage: scripts/test_server.sh [clients] [slow] [load] [soak [SECONDS]]
       scripts/test_server.sh short

Tries \`flux serve\` with the built-in model, by all of these in turn where none is named:

  clients  those that people have: OpenAI's for Python, in three versions, and for Node, webuiapi, those of ComfyUI's API,
           and those of the Model Context Protocol; and answers against /openapi.json
  slow     1000 clients that send nothing, or slowly, beside one that waits for its images; slowhttptest where it is there
  load     \`flux bench serve\`, and oha beside it where it is there
  soak     for SECONDS (60) at 80% of what it can do, with clients that go and two models in turn: what it holds stays
  short    the newest one of each client; one that takes longer than three minutes fails

What cannot be installed is skipped with a line.

environment:
  FLUX_BIN  the program (target/release/flux)
  CLIENTS   where the clients are installed (target/clients)
  OHA       the program (oha)
END
}

sections=()
soak_seconds=60
while [[ $# -gt 0 ]]; do
    case "$1" in
        clients | slow | load | short) sections+=("$1") ;;
        soak)
            sections+=(soak)
            if [[ "${2:-}" =~ ^[0-9]+$ ]]; then
                soak_seconds=$2
                shift
            fi
            ;;
        -h | --help)
            usage
            exit
            ;;
        *)
            echo "error: \`$1\` is not known; --help tells the usage" >&2
            exit 2
            ;;
    esac
    shift
done
[[ ${#sections[@]} -gt 0 ]] || sections=(clients slow load soak)

flux=$(realpath "${FLUX_BIN:-target/release/flux}")
clients=$(mkdir -p "${CLIENTS:-target/clients}" && cd "${CLIENTS:-target/clients}" && pwd)
log=$clients/serve.log
[[ -x "$flux" ]] || {
    echo "error: there is no $flux: \`make build\` makes it" >&2
    exit 1
}

failed=0
server=

# A folder of packages for Python, installed once: NAME, PACKAGES...
python_with() {
    local venv=$clients/$1 log=$clients/$1.log
    shift
    if [[ ! -e "$venv/done" ]]; then
        timeout 60 python3 -m venv --clear "$venv" >"$log" 2>&1 || return 1
        timeout 200 "$venv/bin/pip" install --quiet --disable-pip-version-check --cache-dir "$clients/pip-cache" \
            --timeout 10 --retries 1 "$@" >>"$log" 2>&1 || return 1
        touch "$venv/done"
    fi
    echo "$venv/bin/python"
}

# Seconds that a client may take.
most=3600

run() {
    timeout --kill-after 5 "$most" "$@" || {
        echo "failed: ${*: -2}" >&2
        failed=1
    }
}

with_clients() {
    serve "$flux" "$log"
    local port=${url##*:}
    if command -v python3 >/dev/null; then
        for version in 1.109.1 2.54.0 3.54.0; do
            if python=$(python_with "openai-$version" "openai==$version" httpx); then
                run "$python" tests/serve/clients/openai_client.py "$url"
            else
                echo "skipped: openai $version could not be installed: $(why "$clients/openai-$version.log")"
            fi
        done
        if python=$(python_with webuiapi "webuiapi==0.9.17"); then
            run "$python" tests/serve/clients/webui_client.py "$port"
        else
            echo "skipped: webuiapi could not be installed: $(why "$clients/webuiapi.log")"
        fi
        if python=$(python_with comfy "websocket-client==1.*" "aiohttp==3.*"); then
            run "$python" tests/serve/clients/comfy_client.py "$url"
        else
            echo "skipped: clients of ComfyUI's API could not be installed: $(why "$clients/comfy.log")"
        fi
        for version in 1 2; do
            if python=$(python_with "mcp-$version" "mcp==$version.*"); then
                run "$python" tests/serve/clients/mcp_client.py "$flux" "$url"
            else
                echo "skipped: mcp $version could not be installed: $(why "$clients/mcp-$version.log")"
            fi
        done
        if python=$(python_with schema httpx jsonschema); then
            run "$python" tests/serve/clients/schema.py "$url"
        else
            echo "skipped: jsonschema could not be installed: $(why "$clients/schema.log")"
        fi
    else
        echo "skipped: no Python"
    fi
    with_node
}

with_node() {
    if command -v npm >/dev/null; then
        if npm_packages "$clients" openai@6.49.0 @modelcontextprotocol/sdk@1.32.2; then
            cp tests/serve/clients/*.mjs "$clients/"
            run node "$clients/openai_client.mjs" "$url"
            run node "$clients/mcp_client.mjs" "$flux" "$url"
        else
            echo "skipped: the clients for Node could not be installed: $(why "$clients/npm.log")"
        fi
    else
        echo "skipped: no npm"
    fi
}

# One folder of packages for all of them is quicker.
with_short() {
    local python
    most=180
    serve "$flux" "$log"
    if ! command -v python3 >/dev/null; then
        echo "skipped: no Python"
    elif python=$(python_with short "openai==3.54.0" "httpx==0.28.1" "webuiapi==0.9.17" "mcp==2.3.0" \
        "websocket-client==1.9.2" "aiohttp==3.14.5" "jsonschema==4.26.0"); then
        run "$python" tests/serve/clients/openai_client.py "$url"
        run "$python" tests/serve/clients/webui_client.py "${url##*:}"
        run "$python" tests/serve/clients/mcp_client.py "$flux" "$url"
        run "$python" tests/serve/clients/comfy_client.py "$url"
        run "$python" tests/serve/clients/schema.py "$url"
    else
        echo "skipped: the clients for Python could not be installed: $(why "$clients/short.log")"
    fi
    with_node
}

with_slow_ones() {
    command -v python3 >/dev/null || {
        echo "skipped: slow clients: no Python"
        return
    }
    serve "$flux" "$log"
    run python3 tests/serve/clients/slow.py "$url"
    if command -v slowhttptest >/dev/null; then
        # Slow heads, bodies and reads; it fails where the server is not to be had meanwhile.
        for kind in -H -B -X; do
            slowhttptest -c 900 "$kind" -i 5 -r 300 -l 45 -p 5 -u "$url/readyz" >"$clients/slow.log" 2>&1 || true
            if grep -q 'service available: *NO' "$clients/slow.log"; then
                echo "failed: slowhttptest $kind: see $clients/slow.log" >&2
                failed=1
            fi
        done
    else
        echo "skipped: slowhttptest is not installed"
    fi
}

with_load() {
    serve "$flux" "$log"
    run "$flux" bench serve --url "$url" --size 64 --steps 1 --clients 1,8 --seconds 10
    if command -v "${OHA:-oha}" >/dev/null; then
        run "${OHA:-oha}" -z 10s -c 8 --no-tui -m POST -T application/json \
            -d '{"prompt": "a red circle", "size": "64x64", "steps": 1, "seed": 1}' "$url/v1/images/generations"
    else
        echo "skipped: there is no oha: \`make oha\` builds it"
    fi
}

with_soak() {
    command -v python3 >/dev/null || {
        echo "skipped: soak: no Python"
        return
    }
    serve "$flux" "$log" --model a=models/tiny --model b=models/tiny --keep-mib 16
    run python3 scripts/soak_server.py "$url" "$server" "$soak_seconds"
    if grep -n 'panicked' "$log" >&2; then
        failed=1
    fi
}

for section in "${sections[@]}"; do
    case "$section" in
        clients) with_clients ;;
        short) with_short ;;
        slow) with_slow_ones ;;
        load) with_load ;;
        soak) with_soak ;;
    esac
    kill "$server" 2>/dev/null || true
done
exit "$failed"
