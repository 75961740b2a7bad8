#!/usr/bin/env bash
# Installs the results of `make dist` in clean roots, and generates an image in each: from the archive, from the package,
# and by the steps of scripts/container/Containerfile. A root has libc, a shell and a few tools of this machine only.
#
#   scripts/check_dist.sh FOLDER
#
# DRAW=FLAGS sets the flags of the image [default: 128x128, 4 steps]. AGAIN=1 builds everything a second time, from the
# program in the archive, and checks that the bytes are the same.
set -euo pipefail
export LC_ALL=C

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[[ $# -eq 1 && -d "$1" ]] || {
    echo "usage: $0 FOLDER, the output folder of \`make dist\`" >&2
    exit 2
}
dist=$(realpath "$1")
read -r -a draw <<<"${DRAW:---size 128}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "error: $1" >&2
    exit 1
}

# The command that changes the root: as root, or as a user in its own namespace.
inside=(chroot)
if [[ $EUID -ne 0 ]]; then
    inside=(unshare --map-root-user chroot)
fi

# Copies programs and their libraries.
bring() { # ROOT PROGRAM...
    local to=$1 program file
    shift
    for program in "$@"; do
        file=$(command -v "$program") || fail "$program is not installed"
        file=$(realpath "$file")
        install -D "$file" "$to/usr/bin/$program"
        for library in $(ldd "$file" 2>/dev/null | grep -o '/[^ ]*'); do
            [[ -e "$to$library" ]] || install -D "$library" "$to$library"
        done
    done
}

# Creates a root with the parts that every system has.
clean_root() { # NAME
    local to=$work/$1
    mkdir -p "$to"/{tmp,dev,etc,usr/bin,usr/sbin,root,images}
    ln -s usr/bin "$to/bin"
    ln -s usr/sbin "$to/sbin"
    echo 'root:x:0:0:root:/root:/bin/sh' >"$to/etc/passwd"
    bring "$to" bash sh rm mkdir cat ls tar gzip sha256sum
    # The libraries of the program itself.
    for library in libc.so.6 libm.so.6 libgcc_s.so.1; do
        file=$(ldconfig -p | sed -n "s|.*$library (libc6,x86-64).* => ||p" | head -n 1)
        [[ -e "$to$file" ]] || install -D "$(realpath "$file")" "$to$file"
    done
    echo "$to"
}

run() { # ROOT COMMAND
    env -i PATH=/usr/sbin:/usr/bin HOME=/root LC_ALL=C "${inside[@]}" "$1" /bin/sh -c "$2"
}

draws() { # ROOT PROGRAM
    local picture=$1/images/circle.png
    run "$1" "cd /images && $2 'a red circle on a blue background' -S 100 ${draw[*]} --device cpu -q -o circle.png"
    [[ "$(head -c 8 "$picture" | od -An -tx1 | tr -d ' \n')" == 89504e470d0a1a0a ]] || fail "$picture is not a PNG"
    run "$1" "$2 info /images/circle.png" | grep -q 'a red circle on a blue background' || fail "the image does not contain its recipe"
    run "$1" "$2 selftest --device cpu 37x77" | grep -q ' passed$' || fail "the selftest failed"
    run "$1" "$2 devices" >/dev/null
    rm "$picture"
}

completes() { # ROOT FILE
    local found
    # shellcheck disable=SC2016 # the shell in the root expands them
    found=$(run "$1" 'bash --norc -c ". '"$2"'; COMP_WORDS=(flux selft); COMP_CWORD=1; _flux flux selft flux; echo \"\${COMPREPLY[*]}\""')
    [[ "$found" == selftest ]] || fail "bash completes \`selft\` to \`$found\`"
}

check_archive() {
    local to archive=$1 name=${1##*/} folder
    folder=/opt/${name%.tar.gz}
    to=$(clean_root archive)
    mkdir "$to/opt"
    cp "$archive" "$to/tmp/"
    run "$to" "cd /opt && tar -xzf /tmp/$name && cd $folder && sha256sum --quiet -c SHA256SUMS"
    for file in LICENSE LICENSES.txt README.md share/man/man1/flux.1 share/fish/vendor_completions.d/flux.fish; do
        [[ -s "$to$folder/$file" ]] || fail "$name has no $file"
    done
    [[ "$(tar -tvzf "$archive" --numeric-owner | awk '{ print $2 }' | sort -u)" == 0/0 ]] || fail "the files in $name do not belong to root"
    draws "$to" "$folder/bin/flux"
    completes "$to" "$folder/share/bash-completion/completions/flux"
    echo "the archive works in a clean root"
}

# Marks the dependencies of the package as installed, as on this machine.
with_dpkg() { # ROOT
    mkdir -p "$1"/var/lib/dpkg/{info,updates,triggers} "$1/var/log"
    dpkg-query --status libc6 libgcc-s1 >"$1/var/lib/dpkg/status"
    touch "$1"/var/lib/dpkg/info/{libc6,libgcc-s1}:amd64.list
    bring "$1" dpkg dpkg-deb dpkg-split diff ldconfig start-stop-daemon
    # ldconfig is a script on some systems, and has no work here.
    printf '#!/bin/sh\n' >"$1/usr/bin/ldconfig"
}

check_package() {
    local to
    to=$(clean_root package)
    with_dpkg "$to"
    cp "$1" "$to/tmp/flux.deb"
    run "$to" "dpkg --install /tmp/flux.deb" >/dev/null
    draws "$to" flux
    completes "$to" /usr/share/bash-completion/completions/flux
    [[ -s "$to/usr/share/doc/flux/copyright" && -s "$to/usr/share/man/man1/flux.1.gz" ]] || fail "files are missing"
    run "$to" "dpkg --remove flux" >/dev/null 2>"$work/removed" || fail "the package was not removed: $(cat "$work/removed")"
    [[ ! -e "$to/usr/bin/flux" ]] || fail "the package was not removed"
    echo "the package works in a clean root, with $(dpkg-deb --field "$1" Depends)"
}

check_container() {
    local to step steps=0
    to=$(clean_root container)
    with_dpkg "$to"
    cp "$1" "$to/tmp/flux.deb" # its COPY
    while read -r step; do
        run "$to" "$step" >/dev/null || fail "this step of the Containerfile failed: $step"
        steps=$((steps + 1))
    done < <(sed -n 's/^RUN //p' "$root/scripts/container/Containerfile")
    [[ $steps -gt 1 ]] || fail "the Containerfile has no steps"
    draws "$to" flux
    echo "the $steps steps of the Containerfile work in a clean root"
}

check_again() {
    mkdir "$work/again"
    tar -C "$work/again" --strip-components=2 -xzf "$1" "$(basename "$1" .tar.gz)/bin/flux"
    "$root/scripts/dist/make_dist.sh" "$work/again/flux" "$work/again/dist" >/dev/null
    cmp "$dist/SHA256SUMS" "$work/again/dist/SHA256SUMS" || fail "the second build differs"
    echo "the second build has the same bytes"
}

(cd "$dist" && sha256sum --quiet -c SHA256SUMS)
archives=("$dist"/flux-*-x86_64-linux.tar.gz) packages=("$dist"/flux_*_amd64.deb)
[[ ${#archives[@]} -eq 1 && -e "${archives[0]}" ]] || fail "$dist does not contain exactly one archive"
[[ -z "${AGAIN:-}" ]] || check_again "${archives[0]}"
if ! "${inside[@]}" / true 2>/dev/null; then
    echo "skipped: this user cannot change the root of a command" >&2
    exit
fi
check_archive "${archives[0]}"
if command -v dpkg-query >/dev/null && [[ -e "${packages[0]}" ]]; then
    check_package "${packages[0]}"
    check_container "${packages[0]}"
else
    echo "skipped: dpkg is not installed, so the package and the Containerfile are not checked" >&2
fi
