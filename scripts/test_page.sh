#!/usr/bin/env bash
# Tests the web page of `flux serve` in headless Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/serving.sh
. scripts/serving.sh

usage() {
    cat <<END
usage: scripts/test_page.sh [--only WORD] [SHOTS]

Tests the web page of \`flux serve\` in headless Chromium with the built-in model: generates, drops, pastes, masks,
cancels and reloads, in desktop and phone layouts, and checks accessibility with axe-core. Screenshots go into the folder
SHOTS. --only runs only the parts whose names contain WORD. The test is skipped with a message if Chromium or npm is
missing.

environment:
  FLUX_BIN  the program (target/release/flux)
  CLIENTS   the folder for npm packages (target/clients)
  INSTALL   1: install Chromium with apt-get if it is missing
END
}

only=
if [[ "${1:-}" == --only ]]; then
    only=${2:?a word}
    shift 2
fi
case "${1:-}" in
    -h | --help)
        usage
        exit
        ;;
    -*)
        echo "error: unknown argument \`$1\`; see --help" >&2
        exit 2
        ;;
esac

flux=${FLUX_BIN:-target/release/flux}
clients=$(mkdir -p "${CLIENTS:-target/clients}" && cd "${CLIENTS:-target/clients}" && pwd)
shots=${1:+--shots $(mkdir -p "$1" && cd "$1" && pwd)}
[[ -x "$flux" ]] || {
    echo "error: $flux does not exist: run \`make build\`" >&2
    exit 1
}

skip() {
    echo "skipped: $1"
    exit 0
}

command -v npm >/dev/null || skip "npm is not installed"
if ! command -v chromium >/dev/null && [[ "${INSTALL:-}" == 1 && "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    { apt-get update && apt-get install -y --no-install-recommends chromium; } >"$clients/apt.log" 2>&1 \
        || skip "Chromium could not be installed: $(why "$clients/apt.log")"
fi
chromium=$(command -v chromium) || skip "Chromium is not installed"
timeout 60 "$chromium" --headless --no-sandbox --disable-gpu --user-data-dir="$clients/chromium" --dump-dom about:blank \
    >"$clients/chromium.log" 2>&1 || skip "Chromium does not start: $(why "$clients/chromium.log")"
npm_packages "$clients" playwright-core@1.65.1 axe-core@4.14.1 || skip "packages could not be installed: $(why "$clients/npm.log")"

log=$clients/page-serve.log
serve "$flux" "$log"
cp tests/page/*.mjs "$clients/"
# shellcheck disable=SC2086 # a flag and its folder, or empty
(cd "$clients" && node page.mjs "$url" --chromium "$chromium" --only "$only" $shots)
