# Sourced by the scripts: sets `flux` to the program.
# shellcheck shell=bash disable=SC2034 # the script that sources this file uses it

target=${CARGO_TARGET_DIR:-target}
[[ "$target" == /* ]] || target=$(dirname "${BASH_SOURCE[0]}")/../$target # cargo runs in the project's folder
built=$target/release/flux
if [[ "$target/quick/flux" -nt "$built" ]]; then
    built=$target/quick/flux # of `make image`
fi
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
