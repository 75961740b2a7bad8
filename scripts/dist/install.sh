#!/usr/bin/env bash
# Installs a program with its completions, man pages and licences; `--remove` removes them.
#
#   scripts/dist/install.sh PROGRAM FOLDER
#   scripts/dist/install.sh --remove FOLDER
#
# FOLDER is the parent folder of `bin` and `share`, such as ~/.local, /usr/local, or the folder of a package. LICENSES is a
# file with the licences of all crates, which is also installed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
files=(
    bin/flux
    share/bash-completion/completions/flux
    share/zsh/site-functions/_flux
    share/fish/vendor_completions.d/flux.fish
    share/doc/flux/LICENSE
    share/doc/flux/LICENSES.txt
    share/doc/flux/README.md
    lib/systemd/system/flux.service
    lib/systemd/system/flux.socket
    share/systemd/user/flux.service
    share/systemd/user/flux.socket
)

usage() {
    echo "usage: $0 PROGRAM FOLDER, or $0 --remove FOLDER" >&2
    exit 2
}
[[ $# -eq 2 && -n "$1" && -n "$2" ]] || usage
folder=$2

if [[ "$1" == --remove ]]; then
    for file in "${files[@]}"; do
        rm -f "$folder/$file"
    done
    # Includes man pages of commands that later versions may not have.
    rm -f "$folder"/share/man/man1/flux.1 "$folder"/share/man/man1/flux-*.1
    if [[ -d "$folder/share/doc/flux" ]]; then
        rmdir --ignore-fail-on-non-empty "$folder/share/doc/flux"
    fi
    exit
fi

program=$1
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$program" --version >/dev/null # fails with the reason if the program cannot run
mkdir "$made/man"
"$program" man "$made/man"
for shell in bash zsh fish; do
    "$program" completions "$shell" >"$made/$shell"
done
put() { install -D -m "$1" "$2" "$folder/$3"; } # MODE FROM TO
put 755 "$program" bin/flux
put 644 "$made/bash" share/bash-completion/completions/flux
put 644 "$made/zsh" share/zsh/site-functions/_flux
put 644 "$made/fish" share/fish/vendor_completions.d/flux.fish
for page in "$made"/man/*.1; do
    put 644 "$page" "share/man/man1/${page##*/}"
done
# systemd reads the system's units below /usr and /usr/local, and a user's units also below ~/.local.
for unit in flux.service flux.socket; do
    [[ "$folder" == "${HOME:-}/.local" ]] || put 644 "$root/scripts/systemd/$unit" "lib/systemd/system/$unit"
    put 644 "$root/scripts/systemd/user/$unit" "share/systemd/user/$unit"
done
case "$folder" in
    */usr | */usr/local | "${HOME:-}/.local") ;;
    *) [[ -n "${LICENSES:-}" ]] || echo "note: systemd looks for units in other folders: add these with \`systemctl --user link \"$folder\"/share/systemd/user/flux.*\`" >&2 ;;
esac
put 644 "$root/LICENSE" share/doc/flux/LICENSE
put 644 "$root/README.md" share/doc/flux/README.md
if [[ -n "${LICENSES:-}" ]]; then
    put 644 "$LICENSES" share/doc/flux/LICENSES.txt
fi
