#!/usr/bin/env bash
# Drives the page of `flux serve` in headless Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/serving.sh
. scripts/serving.sh

usage() {
    cat <<END
usage: scripts/test_page.sh [--only WORD] [SHOTS]

Drives the page of \`flux serve\` in headless Chromium with the built-in model: draws, drops, pastes, masks, cancels,
reloads, on a desktop and on a phone, and looks for violations with axe-core. Screenshots go into the folder SHOTS. With
--only, those parts alone whose names have the word. It is skipped with a line where Chromium or npm is
missing.

environment:
  FLUX_BIN  the program (target/release/flux)
  CLIENTS   where packages of npm are installed (target/clients)
  INSTALL   1: install Chromium by apt-get where it is missing
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
        echo "error: \`$1\` is not known; --help tells the usage" >&2
        exit 2
        ;;
esac

flux=${FLUX_BIN:-target/release/flux}
clients=$(mkdir -p "${CLIENTS:-target/clients}" && cd "${CLIENTS:-target/clients}" && pwd)
shots=${1:+--shots $(mkdir -p "$1" && cd "$1" && pwd)}
[[ -x "$flux" ]] || {
    echo "error: there is no $flux: \`make build\` makes it" >&2
    exit 1
}

skip() {
    echo "skipped: $1"
    exit 0
}

command -v npm >/dev/null || skip "no npm"
if ! command -v chromium >/dev/null && [[ "${INSTALL:-}" == 1 && "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    { apt-get update && apt-get install -y --no-install-recommends chromium; } >"$clients/apt.log" 2>&1 \
        || skip "Chromium could not be installed: $(why "$clients/apt.log")"
fi
chromium=$(command -v chromium) || skip "no Chromium"
timeout 60 "$chromium" --headless --no-sandbox --disable-gpu --user-data-dir="$clients/chromium" --dump-dom about:blank \
    >"$clients/chromium.log" 2>&1 || skip "Chromium does not start: $(why "$clients/chromium.log")"
npm_packages "$clients" playwright-core@1.65.1 axe-core@4.14.1 || skip "packages could not be installed: $(why "$clients/npm.log")"

log=$clients/page-serve.log
serve "$flux" "$log"
cp tests/page/page.mjs "$clients/"
# shellcheck disable=SC2086 # a flag and its folder, or nothing
(cd "$clients" && node page.mjs "$url" --chromium "$chromium" --only "$only" $shots)
