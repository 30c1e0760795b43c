#!/bin/sh
# Builds the Kubernetes commands that the tests start (kube-apiserver,
# kube-controller-manager, kube-proxy, kubectl), etcd, etcdutl and helm from their Go
# modules into the user's cache, one directory per version, once: it does
# nothing, at once, when they are there.
#
# usage: deploy/kubernetes/build.sh           builds what is missing
#        deploy/kubernetes/build.sh missing   succeeds when something is missing
#
# Any Go will do to begin with: one older than GO_VERSION is used to fetch that
# version, which is a Go module too, and is verified like one.
set -eu
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../versions.env"

CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/guideway"
WORK="$CACHE/build-go"
# Modules and compiled packages have a cache of their own, which goes away with
# the build: 4 GB, of which no later run would use anything.
export GOMODCACHE="$WORK/modules" GOCACHE="$WORK/packages"
export CGO_ENABLED=0 GOFLAGS='-trimpath -modcacherw -mod=readonly -buildvcs=false'
PATH="$PATH:/usr/local/go/bin"
unset GOROOT

say() {
    printf 'kubernetes: %s\n' "$*"
}

die() {
    printf 'kubernetes: %s\n' "$*" >&2
    exit 1
}

## Go

# Succeeds when `$1 version` is at least GO_VERSION.
new_enough() {
    its=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
    oldest=$(printf '%s\n%s\n' "${its#go}" "$GO_VERSION" | sort -V | head -n 1)
    [ "$oldest" = "$GO_VERSION" ]
}

# Prints a go command that is new enough.
find_go() {
    go=$(command -v go) || die "no go command: deploy/setup.sh test installs one"
    if new_enough "$go"; then
        echo "$go"
        return
    fi
    case $(uname -m) in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    *) die "needs Go $GO_VERSION, and $go is older" ;;
    esac
    say "fetching Go $GO_VERSION" >&2
    module=golang.org/toolchain@v0.0.1-go$GO_VERSION.linux-$arch
    # Outside any module, whose go.mod an old Go would not understand.
    (mkdir -p "$WORK/empty" && cd "$WORK/empty" && GOFLAGS=-modcacherw "$go" mod download "$module") ||
        die "cannot fetch Go $GO_VERSION"
    # Modules have no execute bits and no go.mod below their root.
    root="$GOMODCACHE/$module"
    chmod +x "$root"/bin/* "$root"/pkg/tool/*/*
    [ ! -e "$root/src/_go.mod" ] || cp "$root/src/_go.mod" "$root/src/go.mod"
    echo "$root/bin/go"
}

## Building

# build DIRECTORY MODULE-DIRECTORY LDFLAGS COMMAND=PACKAGE...: builds the
# commands that DIRECTORY lacks, and moves each into it when it is complete.
build() {
    directory=$1 module=$2 ldflags=$3
    shift 3
    for command; do
        package=${command#*=} command=${command%%=*}
        [ ! -x "$directory/$command" ] || continue
        [ -n "${go:-}" ] || go=$(find_go)
        begin=$(date +%s)
        say "building ${directory##*/} $command"
        mkdir -p "$directory" "$WORK/tmp"
        (
            cd "$here/$module"
            GOTOOLCHAIN=local exec "$go" build -v -ldflags "-s -w $ldflags" \
                -o "$WORK/tmp/$command" "$package"
        ) >"$WORK/$command.log" 2>&1 &
        builder=$!
        watch_build || {
            tail -n 30 "$WORK/$command.log" >&2
            die "building $command failed"
        }
        mv "$WORK/tmp/$command" "$directory/$command"
        say "built $command in $(($(date +%s) - begin)) s"
    done
}

# Waits for the builder, says how far it is every 30 s, and returns its status.
watch_build() {
    next=$((begin + 30))
    while kill -0 "$builder" 2>/dev/null; do
        sleep 1
        now=$(date +%s)
        [ "$now" -ge "$next" ] || continue
        next=$((now + 30))
        say "$command: $(grep -c / "$WORK/$command.log") packages compiled, $((now - begin)) s"
    done
    status=0
    wait "$builder" || status=$?
    builder=
    return $status
}

end_builder() {
    [ -z "${builder:-}" ] || kill "$builder" 2>/dev/null || true
}

everything() {
    stamp=k8s.io/component-base/version
    minor=${KUBERNETES_VERSION#1.}
    build "$CACHE/etcd-$ETCD_VERSION" etcd "" \
        etcd=go.etcd.io/etcd/server/v3 etcdutl=go.etcd.io/etcd/etcdutl/v3
    build "$CACHE/kubernetes-$KUBERNETES_VERSION" . \
        "-X $stamp.gitVersion=v$KUBERNETES_VERSION -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%%.*}" \
        kube-apiserver=k8s.io/kubernetes/cmd/kube-apiserver \
        kube-controller-manager=k8s.io/kubernetes/cmd/kube-controller-manager \
        kube-proxy=k8s.io/kubernetes/cmd/kube-proxy \
        kubectl=k8s.io/kubernetes/cmd/kubectl
    build "$CACHE/helm-$HELM_VERSION" helm \
        "-X helm.sh/helm/v4/internal/version.version=v$HELM_VERSION" \
        helm=helm.sh/helm/v4/cmd/helm
}

is_missing() {
    for file in "etcd-$ETCD_VERSION/etcd" "etcd-$ETCD_VERSION/etcdutl" "helm-$HELM_VERSION/helm" \
        "kubernetes-$KUBERNETES_VERSION/kube-apiserver" \
        "kubernetes-$KUBERNETES_VERSION/kube-controller-manager" \
        "kubernetes-$KUBERNETES_VERSION/kube-proxy" \
        "kubernetes-$KUBERNETES_VERSION/kubectl"; do
        [ -x "$CACHE/$file" ] || return 0
    done
    return 1
}

case ${1:-} in
"") ;;
missing)
    is_missing
    exit
    ;;
*) die "usage: deploy/kubernetes/build.sh [missing]" ;;
esac

is_missing || exit 0
mkdir -p "$WORK"
# Two clones may be set up side by side.
exec 9>"$CACHE/build-go.lock"
flock -n 9 || {
    say "another build is under way: waiting for it"
    flock 9
}
trap end_builder EXIT
trap 'exit 1' INT TERM
everything
rm -rf "$WORK"
