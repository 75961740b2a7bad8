#!/usr/bin/env bash
# Runs common clients against `flux serve`.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/serving.sh
. scripts/serving.sh

usage() {
    cat <<END
usage: scripts/test_server.sh [clients] [slow] [load] [soak [SECONDS]]
       scripts/test_server.sh short

Tests \`flux serve\` with the built-in model. Sections, all except \`short\` by default:

  clients  common clients: OpenAI's for Python in three versions and for Node, webuiapi, and clients for ComfyUI's API and
           the Model Context Protocol; responses against /openapi.json; and the newest clients through nginx, at its root
           and below a path
  slow     1000 idle or slow clients next to one that generates images; slowhttptest if it is installed
  load     \`flux bench serve\`, and oha if it is installed
  soak     SECONDS (60) at 80% of the max load, with clients that disconnect and two alternating models; memory must not
           grow; from 1200 seconds on, every prompt is new
  short    the newest version of each client, through nginx; fails if a client takes longer than three minutes

Clients that cannot be installed are skipped with a message.

environment:
  FLUX_BIN  the program (target/release/flux)
  CLIENTS   the folder for the clients (target/clients)
  OHA       the oha program (oha)
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
            echo "error: unknown argument \`$1\`; see --help" >&2
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
    echo "error: $flux does not exist: run \`make build\`" >&2
    exit 1
}

failed=0
server=
nginx=
proxied=

# Installs Python packages into a virtual environment once: NAME, PACKAGES...
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

# The max seconds for a client.
most=3600

run() {
    timeout --kill-after 5 "$most" "$@" || {
        echo "failed: ${*: -2}" >&2
        failed=1
    }
}

# Puts nginx in front of the server, with the configuration in docs/deploying.md: `proxied` is below a path, and `url` at
# the root. nginx is downloaded into a folder if it is not installed.
behind_nginx() {
    local folder=$clients/nginx program port
    proxied=$url
    mkdir -p "$folder/run"
    if ! program=$(PATH=$PATH:/usr/sbin command -v nginx); then
        program=$folder/usr/sbin/nginx
        [[ -x "$program" ]] || (cd "$folder" && timeout 60 apt-get download nginx && dpkg -x nginx_*.deb .) \
            >"$clients/nginx.log" 2>&1 || true
    fi
    if ! command -v python3 >/dev/null || ! "$program" -v >>"$clients/nginx.log" 2>&1; then
        echo "skipped: nginx could not be installed: $(why "$clients/nginx.log")"
        return
    fi
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    # The second location has only `proxy_pass`: the name of the upstream is sent as `Host`.
    {
        echo "daemon off; master_process off; pid $folder/run/pid; error_log $folder/run/error.log; events {}"
        echo "http { access_log off; upstream flux-upstream { server ${url#http://}; }"
        for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path $folder/run/$kind;"; done
        sed -n '/^```nginx$/,/^```$/p' docs/deploying.md | grep -v '^```' \
            | sed -e "s|listen 80;|listen 127.0.0.1:$port;|" -e "s|http://127.0.0.1:7860|$url|" \
                -e "s|server_name .*|location / { proxy_pass http://flux-upstream; client_max_body_size 256m; }|"
        echo "}"
    } >"$folder/run/nginx.conf"
    "$program" -p "$folder/run" -c "$folder/run/nginx.conf" -e "$folder/run/error.log" &
    nginx=$!
    # shellcheck disable=SC2064 # the processes that run now
    trap "kill $server $nginx 2>/dev/null || true" EXIT
    for _ in $(seq 50); do
        (: </dev/tcp/127.0.0.1/"$port") 2>/dev/null && break
        sleep 0.1
    done
    url=http://127.0.0.1:$port
    proxied=$url/flux
}

with_clients() {
    serve "$flux" "$log" --trust-proxy 127.0.0.1
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
        echo "skipped: Python is not installed"
    fi
    with_node
    behind_nginx
    [[ "$proxied" != "$url" ]] || return 0
    with_newest
}

with_node() {
    if command -v npm >/dev/null; then
        if npm_packages "$clients" openai@6.49.0 @modelcontextprotocol/sdk@1.32.2; then
            cp tests/serve/clients/*.mjs "$clients/"
            run node "$clients/openai_client.mjs" "${proxied:-$url}"
            run node "$clients/mcp_client.mjs" "$flux" "${proxied:-$url}"
        else
            echo "skipped: the clients for Node could not be installed: $(why "$clients/npm.log")"
        fi
    else
        echo "skipped: npm is not installed"
    fi
}

with_short() {
    most=180
    serve "$flux" "$log" --trust-proxy 127.0.0.1
    behind_nginx
    with_newest
}

# One virtual environment for all clients is faster.
with_newest() {
    local python
    if ! command -v python3 >/dev/null; then
        echo "skipped: Python is not installed"
    elif python=$(python_with short "openai==3.54.0" "httpx==0.28.1" "webuiapi==0.9.17" "mcp==2.3.0" \
        "websocket-client==1.9.2" "aiohttp==3.14.5" "jsonschema==4.26.0"); then
        run "$python" tests/serve/clients/openai_client.py "$proxied"
        run "$python" tests/serve/clients/webui_client.py "${url##*:}"
        run "$python" tests/serve/clients/mcp_client.py "$flux" "$proxied"
        run "$python" tests/serve/clients/comfy_client.py "$proxied"
        run "$python" tests/serve/clients/schema.py "$proxied"
        [[ "$proxied" == "$url" ]] || run "$python" tests/serve/clients/proxied.py "$url" "$proxied"
    else
        echo "skipped: the clients for Python could not be installed: $(why "$clients/short.log")"
    fi
    with_node
}

with_slow_ones() {
    command -v python3 >/dev/null || {
        echo "skipped: slow clients: Python is not installed"
        return
    }
    serve "$flux" "$log"
    run python3 tests/serve/clients/slow.py "$url"
    if command -v slowhttptest >/dev/null; then
        # Slow heads, bodies and reads. Fails if the server is not available meanwhile.
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
        echo "skipped: oha is not installed: build it with \`make oha\`"
    fi
}

with_soak() {
    command -v python3 >/dev/null || {
        echo "skipped: soak: Python is not installed"
        return
    }
    serve "$flux" "$log" --model a=models/tiny --model b=models/tiny --keep-mib 16
    # With only new prompts, caches are full after some minutes.
    local prompts=()
    [[ $soak_seconds -lt 1200 ]] || prompts=(--new-prompts)
    run python3 scripts/soak_server.py "$url" "$server" "$soak_seconds" "${prompts[@]}"
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
    kill "$server" ${nginx:+"$nginx"} 2>/dev/null || true
    nginx= proxied=
done
exit "$failed"
