#!/bin/sh
# Boots the kernels of MATRIX_KERNELS (deploy/versions.env) in qemu, all at once,
# each with an initramfs of its own, and runs the payloads in it: programs that
# load the BPF object and end with 0. Fails when a kernel cannot be had, does not
# boot, a payload fails, or anything else ran than what was meant to.
#
# usage: deploy/kernel-matrix/run.sh [PROGRAM...]
#
# Without arguments the payloads are fastpath's examples `verify` and `egress`,
# its packet cases and, for the newest kernel, control's end-to-end tests over
# devices that the running kernel may lack. One machine has the kernel of
# MATRIX_WHOLE_EDGE_KERNEL, on which the object does not load, and runs control's tests
# of an edge that does without, and one bench's tests of times and of the kernel's
# generator pktgen. Each machine's clock counts instructions as nanoseconds, so that no
# busy host makes anything late there. Kernels are Debian's, unpacked into
# the user's cache and not installed; GUIDEWAY_MATRIX_REFRESH=1 looks for newer
# ones. They come from the Debian mirror that apt knows, or GUIDEWAY_DEBIAN_MIRROR:
# where there is neither, as on Ubuntu, the matrix is skipped with a word, and with
# GUIDEWAY_CI=1 that is a failure.
#
# With GUIDEWAY_MATRIX_ICOUNT=1, there is one machine, whose instructions are to be measured: with
# the newest kernel and one CPU (or GUIDEWAY_MATRIX_CPUS). It has other load balancers too, and all
# that payloads print is shown. They find the directory GUIDEWAY_MATRIX_FILES, if given, as /files.
# GUIDEWAY_MATRIX_ARGUMENTS are the arguments of all payloads.
set -eu
# The messages of apt and others are read.
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
. deploy/versions.env

PATH="$PATH:/usr/sbin:/sbin"
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/guideway/kernel-matrix"
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# What payloads may use beyond the kernel's own parts.
MODULES="veth bridge 8021q bonding ipip sit ip6_tunnel sctp pktgen sch_ingress sch_netem cls_bpf nft_chain_nat nft_masq"
PROGRAMS="bridge ip nft tc"
if [ -n "${GUIDEWAY_MATRIX_ICOUNT:-}" ]; then
    # What IPVS and kube-proxy's rules need: nothing loads a module there when it is asked for.
    MODULES="$MODULES ip_vs ip_vs_rr nft_compat nft_ct nft_fib_inet nft_hash nft_limit nft_log nft_nat nft_numgen
        nft_reject_inet nft_reject_ipv4 nft_reject_ipv6 xt_MASQUERADE xt_addrtype xt_comment xt_conntrack xt_mark
        xt_nat xt_statistic xt_tcpudp ipt_REJECT ip6t_REJECT"
    PROGRAMS="$PROGRAMS iptables-restore ip6tables-restore ipvsadm"
fi
TARGET="${CARGO_TARGET_DIR:-$PWD/target}"
# What they look for where it was built.
BUILT="$TARGET/debug/guideway"
# Of the host's clock: other work beside it takes most of the CPUs.
DEADLINE_S=4800

work=$(mktemp -d)
trap 'end_machines; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

die() {
    printf 'kernel-matrix: %s\n' "$*" >&2
    exit 1
}

# Ends without a verdict where something is missing that CI has.
skip() {
    [ -z "${GUIDEWAY_CI:-}" ] || die "$*"
    printf 'kernel-matrix: SKIPPED: %s\n' "$*" >&2
    exit 0
}

## Kernels

mirror() {
    if [ -n "${GUIDEWAY_DEBIAN_MIRROR:-}" ]; then
        echo "$GUIDEWAY_DEBIAN_MIRROR"
        return
    fi
    apt-get indextargets --format '$(REPO_URI)' \
        'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1
}

# private_apt SUITE COMMAND...: runs an apt command that knows SUITE only and
# leaves the system's lists alone.
private_apt() {
    apt_dir="$work/apt/$1"
    shift
    APT_CONFIG="$apt_dir/apt.conf" "$@"
}

# The system's proxies and certificates still hold: APT_CONFIG is read before them.
private_apt_setup() {
    uri=$(mirror)
    [ -n "$uri" ] || skip "the kernels are Debian's, and apt knows no Debian mirror:" \
        "set GUIDEWAY_DEBIAN_MIRROR to the address of one"
    apt_dir="$work/apt/$1"
    mkdir -p "$apt_dir/lists/partial" "$apt_dir/cache/archives/partial"
    : >"$apt_dir/status"
    echo "deb [arch=amd64 signed-by=$KEYRING] $uri $1 main" >"$apt_dir/sources.list"
    cat >"$apt_dir/apt.conf" <<CONF
Dir::State "$apt_dir";
Dir::State::lists "$apt_dir/lists";
Dir::State::status "$apt_dir/status";
Dir::Cache "$apt_dir/cache";
Dir::Etc::sourcelist "$apt_dir/sources.list";
Dir::Etc::sourceparts "-";
Acquire::Retries "3";
APT::Sandbox::User "root";
APT::Architecture "amd64";
CONF
    private_apt "$1" apt-get -qq update || private_apt "$1" apt-get -qq update
}

# unpack SUITE PACKAGE DIRECTORY
unpack() {
    (
        cd "$work"
        private_apt "$1" apt-get -qq download "$2"
        mkdir -p "${3%/*}"
        rm -rf "$3.partial"
        dpkg -x "$2"_*.deb "$3.partial"
    )
    mv "$3.partial" "$3"
}

# The image that SUITE's linux-image-amd64 stands for.
image_package() {
    private_apt "$1" apt-cache depends linux-image-amd64 |
        sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1
}

# kernel SUITE MINOR: leaves the newest kernel's directory in $kernel.
kernel() {
    kernel=
    if [ -z "${GUIDEWAY_MATRIX_REFRESH:-}" ]; then
        kernel=$(ls -d "$CACHE/linux-image-$2."* 2>/dev/null | grep -v partial | sort -V | tail -n 1)
    fi
    [ -z "$kernel" ] || return 0
    echo "kernel-matrix: looking for Linux $2 in $1"
    private_apt_setup "$1"
    package=$(image_package "$1")
    case $package in
    linux-image-"$2".*) ;;
    *) die "$1 has no Linux $2 (but: ${package:-none})" ;;
    esac
    kernel="$CACHE/$package"
    if [ ! -d "$kernel" ]; then
        echo "kernel-matrix: fetching $package"
        unpack "$1" "$package" "$kernel"
    fi
}

busybox() {
    busybox="$CACHE/busybox-static/bin/busybox"
    if [ ! -x "$busybox" ]; then
        suite=${MATRIX_KERNELS%%:*}
        echo "kernel-matrix: fetching busybox"
        private_apt_setup "$suite"
        unpack "$suite" busybox-static "$CACHE/busybox-static"
    fi
}

## The initramfs

# Leaves the executables to run in $payloads, the packet cases, which hold for a time, in $cases, those for the newest
# kernel in $newest and, if they take times, in $timed, and those for the oldest in $oldest.
# Of the whole workspace, as `cargo test` builds it: with a package's own choice of
# features, cargo would build what they depend on once more.
default_payloads() {
    cargo build --locked --workspace --example verify --example egress
    cargo test --locked --workspace --test packets --test devices --test whole_edge --test netem \
        --test pktgen --no-run 2>"$work/cargo" || {
        cat "$work/cargo" >&2
        die "the test programs cannot be built"
    }
    cat "$work/cargo"
    payloads="$TARGET/debug/examples/verify $TARGET/debug/examples/egress"
    cases=$(executable packets)
    newest=$(executable devices)
    oldest=$(executable whole_edge)
    timed="$(executable netem) $(executable pktgen)"
    [ -x "$BUILT" ] || die "cargo has not built $BUILT, which the tests start"
}

# executable TEST: the program that cargo says it has built of it.
executable() {
    found=$(sed -n "s/^ *Executable .*(\(.*\/$1-.*\))$/\1/p" "$work/cargo")
    [ -x "$found" ] || die "cargo names no program of the test $1"
    echo "$found"
}

# names PATH...: their names in one line, in the order in which init runs them.
names() {
    for path; do
        echo "${path##*/}"
    done | sort | paste -s -d ' '
}

# initramfs KERNEL PAYLOAD...: leaves it in $machine/initramfs.
initramfs() {
    modules_of=$1
    shift
    root="$machine/root"
    mkdir -p "$root/bin" "$root/modules" "$root/payloads"
    cp "$busybox" "$root/bin/busybox"
    cp "$here/init" "$root/init"
    copy_modules "$modules_of"
    [ $# -gt 0 ] || die "there is nothing to run"
    names "$@" >"$machine/meant"
    for payload; do
        copy_program "$payload" "$root/payloads"
    done
    for program in $PROGRAMS; do
        copy_program "$(command -v "$program")" "$root/bin"
    done
    if [ -n "${GUIDEWAY_MATRIX_ICOUNT:-}" ]; then
        # Plug-ins of iptables, and the names that it and nft know protocols by.
        for path in /usr/lib/*/xtables /etc/protocols; do
            mkdir -p "$root${path%/*}"
            cp -r "$path" "$root${path%/*}"
        done
        for plugin in /usr/lib/*/xtables/*.so; do
            copy_libraries "$plugin"
        done
    fi
    printf '%s' "${GUIDEWAY_MATRIX_ARGUMENTS:-}" >"$root/arguments"
    if [ -n "${GUIDEWAY_MATRIX_FILES:-}" ]; then
        cp -r "$GUIDEWAY_MATRIX_FILES" "$root/files"
    fi
    if [ -e "$BUILT" ]; then
        copy_program "$BUILT" "$root${BUILT%/*}"
    fi
    (cd "$root" && find . | cpio --quiet -o -H newc) >"$machine/initramfs"
    rm -rf "$root"
}

# Modules with those that they need, numbered in the order of loading.
copy_modules() {
    base=$1
    [ -d "$base/lib/modules" ] || base=$1/usr
    release=$(ls "$base/lib/modules")
    [ -e "$base/lib/modules/$release/modules.dep" ] || depmod -b "$base" "$release"
    count=100
    for module in $MODULES; do
        modprobe -d "$base" -S "$release" --show-depends "$module" >"$work/depends"
        while read -r verb file _; do
            [ "$verb" = insmod ] || continue
            name=${file##*/}
            # Several modules need it.
            ! ls "$root"/modules/*-"${name%%.*}".ko >/dev/null 2>&1 || continue
            count=$((count + 1))
            case $file in
            *.xz) xz -dc "$file" >"$root/modules/$count-${name%.xz}" ;;
            *.zst) zstd -qdc "$file" >"$root/modules/$count-${name%.zst}" ;;
            *) cp "$file" "$root/modules/$count-$name" ;;
            esac
        done <"$work/depends"
    done
}

# copy_program PROGRAM DIRECTORY: without what debuggers alone read, if it has any. That is most of
# what cargo builds, and the machines unpack it slowly, into memory.
copy_program() {
    mkdir -p "$2"
    strip --strip-debug -o "$2/${1##*/}" "$1" 2>/dev/null || cp "$1" "$2/"
    copy_libraries "$1"
}

# The shared libraries and the loader, at the paths that the program names.
copy_libraries() {
    { ldd "$1" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root${library%/*}"
        cp -L "$library" "$root$library"
    done
}

## The run

# start NAME KERNEL PAYLOAD...: starts a machine.
start() {
    machine="$work/$1"
    mkdir "$machine"
    shift
    initramfs "$@"
    boot "$1"
    machines="$machines $machine"
}

# boot KERNEL: with $cpus CPUs whose clock counts instructions. Nothing is late there, however slow or busy the host is.
boot() {
    # Emulated (tcg): nested KVM aborts on some hosts, and a boot takes seconds only.
    # One thread for all CPUs: with more, code that Linux patches (int3) was seen to trap late.
    # An old CPU, and nothing against its faults: a fifth less to emulate. Where instructions are measured, they are
    # those of a machine as it comes.
    # -no-reboot: both `reboot` at the end of init and a panic end qemu.
    # nice: tests beside it watch the host's clock, and here nobody does.
    model=Nehalem
    options="mitigations=off nokaslr init_on_alloc=0"
    if [ -n "${GUIDEWAY_MATRIX_ICOUNT:-}" ]; then
        model=max
        options=
    fi
    timeout "$DEADLINE_S" nice -n 5 qemu-system-x86_64 \
        -accel tcg,thread=single -cpu $model -smp "$cpus" -icount shift=0,sleep=off -m 2G \
        -nodefaults -no-reboot -display none -serial "file:$machine/serial" \
        -kernel "$1"/boot/vmlinuz-* -initrd "$machine/initramfs" \
        -append "console=ttyS0 quiet panic=-1 $options" >"$machine/qemu" 2>&1 &
    echo $! >"$machine/pid"
}

# Ends what still runs when this script ends early.
end_machines() {
    for pid in "$work"/*/pid; do
        [ ! -e "$pid" ] || kill "$(cat "$pid")" || true
    done
}

# Waits for the end of a machine and judges it by its serial console.
judge() {
    wait "$(cat "$machine/pid")" && ended=0 || ended=$?
    rm "$machine/pid"
    # The console ends its lines with CR LF.
    tr -d '\r' <"$machine/serial" >"$machine/console"
    booted=$(sed -n 's/^guideway: booted .* in \(.*\)$/\1/p' "$machine/console")
    result=$(sed -n 's/^guideway: result //p' "$machine/console")
    if [ -z "$result" ]; then
        result="no result"
        [ "$ended" -ne 124 ] || result="no result within $DEADLINE_S s"
    fi
    if [ "$result" = passed ]; then
        ran=$(sed -n 's/^guideway: ran *//p' "$machine/console")
        meant=$(cat "$machine/meant")
        if [ "$ran" != "$meant" ]; then
            result="ran '$ran' in place of '$meant'"
        elif grep -q '^running 0 tests' "$machine/console"; then
            result="a test program without tests"
        fi
    fi
    release=${machine##*/linux-image-}
    printf '%-28s %8s  %s\n' "$release" "${booted:-never}" "$result" >>"$work/table"
    echo "kernel-matrix: $release: $result; the console:"
    if [ "$result" = passed ] && [ -n "${GUIDEWAY_MATRIX_ICOUNT:-}" ]; then
        cat "$machine/console"
    elif [ "$result" = passed ]; then
        # Each payload's name and last word, and what verifying each program took.
        sed -n 's/^verified: /    /p' "$machine/console"
        grep -v '^$' "$machine/console" |
            grep -B 1 --no-group-separator '^guideway: \(running\|result\)'
    else
        failed=1
        cat "$machine/qemu"
        tail -n 60 "$machine/console"
    fi
}

[ "$(uname -m)" = x86_64 ] || skip "written for x86_64"
busybox
kernels=
for entry in $MATRIX_KERNELS; do
    kernel "${entry%%:*}" "${entry##*:}"
    kernels="$kernels $kernel"
done
[ -n "$kernels" ] || die "MATRIX_KERNELS names no kernel"
[ -z "${GUIDEWAY_MATRIX_ICOUNT:-}" ] || kernels=${kernels##* }
cases=
newest=
oldest=
timed=
if [ $# -gt 0 ]; then
    payloads=$*
else
    default_payloads
fi
machines=
cpus=${GUIDEWAY_MATRIX_CPUS:-1}
for kernel in $kernels; do
    if [ -n "$newest" ] && [ "$kernel" = "${kernels##* }" ]; then
        # pktgen has a thread for each CPU. (With two and such a clock, Linux 6.1 does not boot.)
        cpus=2
        # shellcheck disable=SC2086 # a list of paths
        start "${kernel##*/}-timed" "$kernel" $timed
        cpus=1
        # shellcheck disable=SC2086 # a list of paths
        start "${kernel##*/}" "$kernel" $payloads $cases $newest
    else
        # shellcheck disable=SC2086 # a list of paths
        start "${kernel##*/}" "$kernel" $payloads $cases
    fi
done
if [ -n "$oldest" ]; then
    kernel "${MATRIX_WHOLE_EDGE_KERNEL%%:*}" "${MATRIX_WHOLE_EDGE_KERNEL##*:}"
    start "${kernel##*/}" "$kernel" "$oldest"
fi
printf '%-28s %8s  %s\n' kernel boot result >"$work/table"
failed=0
for machine in $machines; do
    judge
done
cat "$work/table"
exit "$failed"
