#!/usr/bin/env bash
# Creates an archive and a Debian and Ubuntu package of a program, and the file of their checksums.
#
#   scripts/dist/make_dist.sh PROGRAM FOLDER
#
# Builds are reproducible: files are sorted, belong to root, and have the time of SOURCE_DATE_EPOCH or of the commit.
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[[ $# -eq 2 && -n "$1" && -n "$2" ]] || {
    echo "usage: $0 PROGRAM FOLDER" >&2
    exit 2
}
fail() {
    echo "error: $1" >&2
    exit 1
}
for tool in readelf strip tar gzip sha256sum python3 cargo; do
    command -v "$tool" >/dev/null || fail "$tool is not installed"
done
mkdir -p "$2"
program=$(realpath "$1") out=$(realpath "$2")
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH=$epoch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

strip -o "$work/flux" "$program"
version=$("$work/flux" --version) version=${version#flux }
name=flux-$version-x86_64-linux
[[ "$(readelf -h "$work/flux")" == *X86-64* ]] || fail "$program is not for x86-64"
python3 "$root/scripts/dist/licences.py" >"$work/LICENSES.txt"
export LICENSES=$work/LICENSES.txt

# Sets the same time for all files and folders, for reproducible archives.
settle() { find "$1" -exec touch --no-dereference --date="@$epoch" {} +; }

archive() {
    local folder=$work/archive/$name
    "$root/scripts/dist/install.sh" "$work/flux" "$folder"
    cp "$root/LICENSE" "$root/README.md" "$work/LICENSES.txt" "$folder"
    rm -r "$folder/share/doc" # these files are at the top
    (cd "$folder" && find . -type f -printf '%P\0' | sort -z | xargs -0 sha256sum) >"$work/sums"
    install -m 644 "$work/sums" "$folder/SHA256SUMS"
    settle "$folder"
    tar -C "$work/archive" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$name" |
        gzip -n >"$work/$name.tar.gz"
    mv "$work/$name.tar.gz" "$out/"
}

# Prints the dependencies of the program: `libc6 (>= 2.34), libgcc-s1`.
depends() {
    local needed glibc
    needed=$(readelf -d "$work/flux" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort)
    for library in $needed; do
        case $library in
            libc.so.6 | libm.so.6 | libgcc_s.so.1 | ld-linux-x86-64.so.2) ;;
            *) fail "the program needs $library, whose package is unknown" ;;
        esac
    done
    glibc=$(readelf -W --version-info "$work/flux" | grep -o 'GLIBC_[0-9.]*' | sort -u -V | tail -n 1)
    [[ -n "$glibc" ]] || fail "the program requires no glibc version"
    printf 'libc6 (>= %s)' "${glibc#GLIBC_}"
    [[ "$needed" != *libgcc_s* ]] || printf ', libgcc-s1'
}

package() {
    local folder=$work/package file=flux_${version}_amd64.deb depends
    depends=$(depends)
    "$root/scripts/dist/install.sh" "$work/flux" "$folder/usr"
    gzip -n -9 "$folder"/usr/share/man/man1/*.1
    gzip -n -9 <"$root/CHANGELOG.md" >"$folder/usr/share/doc/flux/changelog.gz"
    cat "$root/LICENSE" "$work/LICENSES.txt" >"$folder/usr/share/doc/flux/copyright"
    rm "$folder/usr/share/doc/flux/LICENSE" "$folder/usr/share/doc/flux/LICENSES.txt"
    # Debian has its own folder for zsh.
    mkdir "$folder/usr/share/zsh/vendor-completions"
    mv "$folder/usr/share/zsh/site-functions/_flux" "$folder/usr/share/zsh/vendor-completions/"
    rmdir "$folder/usr/share/zsh/site-functions"
    mkdir "$folder/DEBIAN"
    cat >"$folder/DEBIAN/control" <<END
Package: flux
Version: $version
Architecture: amd64
Maintainer: flux <flux@localhost>
Installed-Size: $(du -sk --apparent-size "$folder/usr" | cut -f 1)
Depends: $depends
Section: graphics
Priority: optional
Description: generates and edits images with FLUX.2-klein
 Generates images from prompts, and edits images, on NVIDIA GPUs and CPUs.
 A small model is included.
END
    (cd "$folder" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$work/md5sums"
    install -m 644 "$work/md5sums" "$folder/DEBIAN/md5sums"
    settle "$folder"
    dpkg-deb --root-owner-group -Zgzip --build "$folder" "$work/$file" >/dev/null
    mv "$work/$file" "$out/"
}

# Files of other versions must not be in the checksums.
rm -f "$out"/flux-*-x86_64-linux.tar.gz "$out"/flux_*_amd64.deb "$out/SHA256SUMS"
archive
if command -v dpkg-deb >/dev/null; then
    package
else
    echo "note: dpkg-deb is not installed, so no package is created" >&2
fi
(cd "$out" && sha256sum flux-*.tar.gz flux_*.deb 2>/dev/null) >"$work/SHA256SUMS" || [[ -s "$work/SHA256SUMS" ]]
install -m 644 "$work/SHA256SUMS" "$out/SHA256SUMS"
cat "$out/SHA256SUMS"
