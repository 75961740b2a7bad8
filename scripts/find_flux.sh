# Sourced by the scripts: sets `flux` to the program.
# shellcheck shell=bash disable=SC2034 # the script that sources this file uses it

root="$(dirname "${BASH_SOURCE[0]}")/.."
built=${CARGO_TARGET_DIR:-target}/release/flux
[[ "$built" == /* ]] || built=$root/$built # cargo runs in the project's folder
if [[ -n "${FLUX_BIN:-}" ]]; then
    flux=$FLUX_BIN
elif [[ -x "$built" ]]; then
    flux=$built
elif command -v flux >/dev/null; then
    flux=flux
else
    echo "error: the program flux was not found" >&2
    echo "  hint: build it with \`make build\`, or set FLUX_BIN to its path" >&2
    exit 1
fi
