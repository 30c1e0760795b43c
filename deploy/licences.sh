#!/bin/sh
# Copies the licences of what the image's binary consists of and is linked with: those
# of Guideway, of crates, of Rust's own library and of Debian's shared libraries.
#
# usage: deploy/licences.sh BINARY DIRECTORY    DIRECTORY will be /usr/share/doc
set -eu
export LC_ALL=C

binary=$1
out=$2
cd "$(dirname "$0")/.."

tree() {
    cargo tree --locked --edges normal --prefix none --format '{p}' "$@"
}

install -D -m 0644 LICENSE-APACHE LICENSE-MIT -t "$out/guideway"

crates=$(tree --package control &&
    tree --package xdp-prog --features bpf-object --target bpfel-unknown-none)
# The workspace's own have a path behind their version.
names=$(echo "$crates" | sed -n 's/^\([^ ]*\) v\([^ ]*\)\( ([^/]*)\)*$/\1-\2/p' | sort -u)
[ -n "$names" ] || { echo "licences: cargo tree names no crate" >&2; exit 1; }
echo "$names" |
    while read -r crate; do
        source=$(echo "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$crate")
        # Names authors and licence, which for some crates nothing else does.
        install -D -m 0644 "$source/Cargo.toml" -t "$out/guideway/crates/$crate"
        find "$source" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' \
            -o -iname 'copyright*' -o -iname 'notice*' -o -iname 'unlicense*' \) \
            -exec install -m 0644 -t "$out/guideway/crates/$crate" {} +
    done

if ldd "$binary" | grep 'not found' >&2; then exit 1; fi
libraries=$(ldd "$binary" | grep -o '/[^ ]*')
# shellcheck disable=SC2086 # a list of paths
packages=$(dpkg --search $libraries "$(rustc --print target-libdir)")
echo "$packages" | sed 's/[:,].*//' | sort -u | while read -r package; do
    install -D -m 0644 "/usr/share/doc/$package/copyright" -t "$out/$package"
done
