#!/bin/sh
# Installs what building, demonstrating or testing Guideway needs and this
# machine lacks, without questions, saying what it does. Does nothing, quickly,
# when nothing is missing.
#
# usage: deploy/setup.sh build|demo|test
#        deploy/setup.sh bpf-sysroot    prints where the BPF object's compiler lives
#
# Debian and Ubuntu: by apt, as root or through sudo. Elsewhere it names the
# packages and ends with 1.
#
# Compilers and bpf-linker have the versions of deploy/versions.env. What is here in another one is
# named and refused; GUIDEWAY_UNPINNED=1 takes it all the same.
set -eu
# The messages of apt and others are read.
export LC_ALL=C

cd "$(dirname "$0")/.."
. deploy/versions.env

PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin:/usr/local/go/bin"
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/guideway"
PINNED=${RUSTUP_TOOLCHAIN:-$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)}

# A missing toolchain is installed below, not as the side effect of a question.
export RUSTUP_AUTO_INSTALL=0
export DEBIAN_FRONTEND=noninteractive
# rustup reports an expected failure without one.
export RUST_BACKTRACE=0

say() {
    printf 'setup: %s\n' "$*"
}

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

have() {
    command -v "$1" >/dev/null 2>&1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        sudo --preserve-env=DEBIAN_FRONTEND "$@"
    else
        die "needs root for: $*; run as root or install sudo"
    fi
}

## Packages

# want COMMAND|FILE PACKAGE...: asks for the packages unless the command or file is there.
want() {
    case $1 in
    /*) [ ! -e "$1" ] || return 0 ;;
    *) ! have "$1" || return 0 ;;
    esac
    shift
    missing="$missing $*"
}

# want_daemon COMMAND PACKAGE SERVICE: asks for a package of which the demo and the tests start their own instances:
# the system's one stays off.
want_daemon() {
    have "$1" || daemons="$daemons $3"
    want "$1" "$2"
}

# first_known PACKAGE...: the first of the names that apt knows, else the first.
first_known() {
    for package; do
        if [ -n "$(candidate "$package")" ]; then
            echo "$package"
            return
        fi
    done
    echo "$1"
}

install_missing() {
    [ -n "$missing" ] || return 0
    have apt-get || die "this distribution has no apt; install what Debian calls:$missing"
    refresh_lists
    say "installing$missing"
    # Packages that bring a daemon must not start it: its address may be in use.
    forbid_daemons
    # shellcheck disable=SC2086 # a list of words
    apt_get install $missing || {
        say "apt failed, trying once more"
        refreshed=
        refresh_lists
        # shellcheck disable=SC2086
        apt_get install $missing || die "apt cannot install:$missing"
    }
    allow_daemons
    missing=
}

# What apt can install, and at which version, is known from its lists.
refresh_lists() {
    if [ -z "${refreshed:-}" ] && have apt-get; then
        say "fetching the package lists"
        apt_get update || say "apt-get update failed, going on with the lists at hand"
        refreshed=1
    fi
}

apt_get() {
    as_root apt-get -q -y --no-install-recommends \
        -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

POLICY=/usr/sbin/policy-rc.d

forbid_daemons() {
    [ ! -e $POLICY ] || return 0
    trap allow_daemons EXIT
    printf '#!/bin/sh\n# guideway setup\nexit 101\n' | as_root tee $POLICY >/dev/null
    as_root chmod 755 $POLICY
}

allow_daemons() {
    if grep -qs '^# guideway setup$' $POLICY; then
        as_root rm -f $POLICY
    fi
}

# candidate PACKAGE: the version that apt would install.
candidate() {
    have apt-cache || return 0
    apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p' | grep -v '^(none)$' || true
}

# Succeeds when the distribution's own Rust is one of the pinned ones.
distribution_has_rust() {
    version=$(candidate rust-web-src)
    is_pinned "${version%%[+~-]*}" "$RUST_VERSIONS"
}

## Pinned versions

# is_pinned VERSION PINNED: succeeds when it is one of them, or any is asked for.
is_pinned() {
    [ -n "$1" ] || return 1
    [ -z "${GUIDEWAY_UNPINNED:-}" ] || return 0
    case " $2 " in
    *" $1 "*) ;;
    *) false ;;
    esac
}

# version_of COMMAND: the second word of what it says of itself.
version_of() {
    "$1" --version 2>/dev/null | sed -n '1s/^[^ ]* \([^ ]*\).*/\1/p'
}

# pinned_rust RUSTC: succeeds when it is a pinned one, and names it otherwise.
pinned_rust() {
    version=$(version_of "$1")
    [ -n "$version" ] || return 1
    is_pinned "$version" "$RUST_VERSIONS" || {
        say "$1 is Rust $version, pinned are $RUST_VERSIONS: not used (GUIDEWAY_UNPINNED=1 has it used)" >&2
        false
    }
}

## The host's compiler

host_toolchain() {
    want make make
    want /etc/ssl/certs/ca-certificates.crt ca-certificates
    want cc gcc libc6-dev
    if have rustup; then
        install_missing
        pinned_toolchain
        return
    fi
    if ! { have cargo && pinned_rust rustc; }; then
        refresh_lists
        if distribution_has_rust; then
            missing="$missing cargo-web rustc-web"
        elif [ -n "$(candidate rustup)" ]; then
            missing="$missing rustup"
        else
            die "no package here has Rust of the versions $RUST_VERSIONS, or rustup;" \
                "install rustup from its own site"
        fi
    fi
    install_missing
    if have rustup; then
        pinned_toolchain
    elif [ "$purpose" = test ]; then
        want cargo-clippy rust-web-clippy
        want rustfmt rustfmt-web
        install_missing
    fi
}

# Makes the toolchain that rust-toolchain.toml names available in rustup.
pinned_toolchain() {
    if sysroot=$(rustup run "$PINNED" rustc --print sysroot 2>/dev/null); then
        if [ -x "$sysroot/bin/cargo-clippy" ] && [ -x "$sysroot/bin/rustfmt" ]; then
            return
        fi
    fi
    say "installing Rust $PINNED by rustup"
    if rustup toolchain install "$PINNED" --profile minimal --component clippy,rustfmt \
        --no-self-update; then
        return
    fi
    # Without rustup's server, the same compiler under another name will do.
    same=$(rustup run stable rustc --version 2>/dev/null) || same=
    case $same in
    "rustc $PINNED "*) ;;
    *) die "rustup cannot install Rust $PINNED; RUSTUP_TOOLCHAIN may name one that is here" ;;
    esac
    stable=$(rustup run stable rustc --print sysroot)
    say "rustup's stable is Rust $PINNED: linking it under that name"
    ln -sfn "$stable" "${RUSTUP_HOME:-$HOME/.rustup}/toolchains/$PINNED-${stable##*/stable-}"
}

## What fastpath's port is built with: libxdp, libbpf and their Rust bindings

has_libclang() {
    ls /usr/lib/llvm-*/lib/libclang.so* /usr/lib/*/libclang-[0-9]*.so* 2>/dev/null | grep -q .
}

xdp_libraries() {
    want clang clang
    has_libclang || missing="$missing libclang-dev"
    want m4 m4
    want ld binutils
    want pkg-config pkg-config
    want /usr/include/libelf.h libelf-dev
    want /usr/include/zlib.h zlib1g-dev
    install_missing
}

## The compiler and linker of the BPF object; fastpath/build.rs looks for them

has_core_source() {
    [ -e "$1/lib/rustlib/src/rust/library/core/src/lib.rs" ] && [ -x "$1/bin/cargo" ]
}

# Prints the sysroot of the compiler for the BPF object.
bpf_sysroot() {
    # Who names one asks for it.
    case ${GUIDEWAY_BPF_TOOLCHAIN:-} in
    /*)
        has_core_source "$GUIDEWAY_BPF_TOOLCHAIN" && echo "$GUIDEWAY_BPF_TOOLCHAIN"
        return
        ;;
    ?*)
        sysroot=$(rustup run "$GUIDEWAY_BPF_TOOLCHAIN" rustc --print sysroot 2>/dev/null) &&
            has_core_source "$sysroot" && echo "$sysroot"
        return
        ;;
    esac
    if have rustup; then
        for name in bpf nightly; do
            if sysroot=$(rustup run "$name" rustc --print sysroot 2>/dev/null) &&
                has_core_source "$sysroot" && pinned_rust "$sysroot/bin/rustc"; then
                echo "$sysroot"
                return
            fi
        done
    fi
    has_core_source /usr && pinned_rust /usr/bin/rustc && echo /usr
}

has_bpf_linker() {
    for linker in "$CACHE/bpf-linker-$BPF_LINKER_VERSION/bin/bpf-linker" "$(command -v bpf-linker)"; do
        version=$(version_of "$linker") || continue
        if is_pinned "$version" "$BPF_LINKER_VERSION"; then
            return
        fi
        [ -z "$version" ] || say "$linker is version $version, pinned is $BPF_LINKER_VERSION: not used" >&2
    done
    false
}

bpf_toolchain() {
    bpf_sysroot >/dev/null || bpf_compiler
    has_bpf_linker || bpf_linker
    if [ "$purpose" = test ]; then
        if [ "$(bpf_sysroot)" = /usr ]; then
            want /usr/bin/cargo-clippy rust-web-clippy
        fi
        install_missing
    fi
}

bpf_compiler() {
    [ -z "${GUIDEWAY_BPF_TOOLCHAIN:-}" ] ||
        die "GUIDEWAY_BPF_TOOLCHAIN=$GUIDEWAY_BPF_TOOLCHAIN has no cargo or no rust-src"
    refresh_lists
    # The distribution's rustup and its compilers exclude each other.
    if distribution_has_rust && [ "$(command -v rustup)" != /usr/bin/rustup ]; then
        missing="$missing rustc-web cargo-web rust-web-src"
        install_missing
        if have rustup; then
            say "naming the distribution's Rust \`bpf\` in rustup"
            rustup toolchain link bpf /usr
        fi
    else
        say "installing the source of core for Rust $PINNED by rustup, as toolchain \`bpf\`"
        rustup component add rust-src --toolchain "$PINNED"
        rustup toolchain link bpf "$(rustup run "$PINNED" rustc --print sysroot)"
    fi
}

bpf_linker() {
    want "/usr/lib/llvm-$LLVM_VERSION/include/llvm-c/Core.h" "llvm-$LLVM_VERSION-dev"
    want c++ g++
    if [ -n "$missing" ]; then
        refresh_lists
        [ -n "$(candidate "llvm-$LLVM_VERSION-dev")" ] ||
            die "no package llvm-$LLVM_VERSION-dev here: put bpf-linker $BPF_LINKER_VERSION," \
                "from its own releases, into PATH"
    fi
    install_missing
    say "building bpf-linker $BPF_LINKER_VERSION (a minute or two, once)"
    LLVM_PREFIX="/usr/lib/llvm-$LLVM_VERSION" CARGO_TARGET_DIR="$CACHE/build" \
        cargo install bpf-linker --version "$BPF_LINKER_VERSION" --locked \
        --no-default-features --features "llvm-$LLVM_VERSION" --no-track \
        --root "$CACHE/bpf-linker-$BPF_LINKER_VERSION" ||
        die "building bpf-linker failed"
    rm -rf "$CACHE/build"
}

## Running

runtime() {
    want ip iproute2
    want ethtool ethtool
    want nft nftables
    want curl curl
    want_daemon nginx nginx-light nginx
    if [ "$purpose" = test ]; then
        want ping iputils-ping
        want arping iputils-arping
        want apparmor_parser apparmor
        want_daemon birdc bird2 bird
        want_daemon haproxy haproxy haproxy
        want iperf3 iperf3
        want dnsmasq dnsmasq-base
        want dig bind9-dnsutils
        want sysctl procps
        want tshark tshark
        want qemu-system-x86_64 qemu-system-x86
        want cpio cpio
        want depmod kmod
        want /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
        want xz xz-utils
        want iptables iptables
        want ipvsadm ipvsadm
        want /etc/protocols netbase
        want openssl openssl
        want_daemon promtool prometheus prometheus
        want systemd-analyze systemd
        if ! have chromium-headless-shell && ! have chromium; then
            refresh_lists
            browser=$(first_known chromium-headless-shell chromium)
            # Ubuntu has a snap alone, which does not run here: the bench's pages are then seen by no browser.
            [ -z "$(candidate "$browser")" ] || want "$browser" "$browser"
        fi
        want /usr/share/fonts/truetype fonts-dejavu-core
        want crun crun
        want /usr/share/containers/seccomp.json golang-github-containers-common
        # Ubuntu's belongs to a kernel.
        want bpftool "$(first_known bpftool "linux-tools-$(uname -r)" linux-tools-generic)"
        want perf "$(first_known linux-perf "linux-tools-$(uname -r)" linux-tools-generic)"
    fi
    install_missing
    if [ -n "$daemons" ] && have systemctl; then
        for daemon in $daemons; do
            as_root systemctl disable --quiet "$daemon.service" || true
        done
    fi
}

## What the control plane is tested against

kubernetes() {
    if deploy/kubernetes/build.sh missing; then
        want go golang-go
        install_missing
    fi
    deploy/kubernetes/build.sh
}

## What reads the bench's files besides the bench

readers() {
    cmp -s deploy/readers.txt "$CACHE/readers/readers.txt" && return
    python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
    install_missing
    say "installing readers for the bench's files"
    rm -rf "$CACHE/readers"
    python3 -m venv "$CACHE/readers" &&
        "$CACHE/readers/bin/pip" install --quiet --disable-pip-version-check --no-deps -r deploy/readers.txt ||
        die "cannot install what deploy/readers.txt names; pip's settings may name another index"
    cp deploy/readers.txt "$CACHE/readers/"
}

bpffs() {
    if ! grep -qs ' /sys/fs/bpf bpf ' /proc/mounts; then
        say "mounting bpffs on /sys/fs/bpf"
        as_root mount -t bpf bpf /sys/fs/bpf ||
            die "cannot mount bpffs on /sys/fs/bpf: it takes CAP_SYS_ADMIN and a kernel with CONFIG_BPF_SYSCALL"
    fi
}

# room GIB: says where the disk may be too small for what is built.
room() {
    free=$(($(df -Pk . | awk 'END { print $4 }') / 1024 / 1024))
    [ "$free" -ge "$1" ] || say "only $free GiB are free here; building and testing everything takes up to $1"
}

purpose=${1:-build}
missing=
daemons=
case $purpose in
build) ;;
demo | test) runtime ;;
bpf-sysroot)
    bpf_sysroot
    exit
    ;;
*) die "usage: deploy/setup.sh build|demo|test|bpf-sysroot" ;;
esac
host_toolchain
xdp_libraries
bpf_toolchain
case $purpose in
demo | test) bpffs ;;
esac
[ -d "${CARGO_TARGET_DIR:-target}" ] || [ "$purpose" != test ] || room 8
if [ "$purpose" = test ]; then
    kubernetes
    readers
fi
