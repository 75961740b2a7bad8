# Sourced by the scripts: `sha256` prints the SHA-256 of standard input in hexadecimal, with the available tool.
# shellcheck shell=bash

if command -v sha256sum >/dev/null; then
    sha256() { sha256sum | cut -d ' ' -f 1; }
elif command -v shasum >/dev/null; then
    sha256() { shasum -a 256 | cut -d ' ' -f 1; }
else
    echo "error: neither sha256sum nor shasum was found" >&2
    echo "  hint: install coreutils" >&2
    exit 1
fi
