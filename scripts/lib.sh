# Shared by the scripts of this folder. Sourced by bash, never run by itself.
# Provides: root, target, say, fail, find_rust, find_compiler, find_root,
# rust_component, build_release, build_verbs, test_program, behaviour_suite, number,
# use_library, alone, usage.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
[[ $target == /* ]] || target=$root/$target

# Debian keeps daemons in sbin, which an ordinary user's PATH leaves out; rustup keeps cargo in
# the home folder, which a non-login shell leaves out.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
export PATH

say() { printf '== %s\n' "$*" >&2; }

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# The options of a script are its own leading comment.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# shellcheck disable=SC2034 # used by the scripts that source this
# Sets as_root to what a command that needs root begins with: nothing, or sudo.
find_root() {
    as_root=()
    [[ $(id -u) == 0 ]] && return
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
        as_root=(sudo)
    else
        fail "$1 needs root: run this as root, or install sudo and allow $(id -un) to use it"
    fi
}

# A positive decimal number, or the script ends.
number() {
    [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || fail "$1 needs a positive number, not '${2-}'"
    printf '%s' "$2"
}

find_rust() {
    command -v cargo >/dev/null ||
        fail "cargo is missing: install Rust 1.88 or newer from https://rustup.rs, then run this again"
}

find_compiler() {
    find_rust
    command -v cc >/dev/null || fail "cc is missing, with which Rust links: run scripts/install, or install gcc"
}

# Adds a rustup component when the tool it brings is absent: rust_component rustfmt cargo-fmt
rust_component() {
    "$2" --version >/dev/null 2>&1 && return
    command -v rustup >/dev/null ||
        fail "$2 is missing and there is no rustup: install the $1 component of your Rust toolchain"
    say "adding the Rust component $1"
    rustup component add "$1" >&2
}

build_release() {
    find_compiler
    say "building libsanshim.so and sanctl"
    (cd "$root" && cargo build --release -p sanshim-shim -p sanctl)
}

# The RDMA provider, beside libsanshim.so. It is no member of the workspace: hosts without
# rdma-core's headers build everything else.
build_verbs() {
    find_rust
    pkg-config --exists libibverbs librdmacm 2>/dev/null ||
        fail "rdma-core's headers are missing, or pkg-config: run scripts/install --rdma"
    say "building libsanshim_verbs.so"
    (cd "$root/verbs" && CARGO_TARGET_DIR=$target/verbs cargo build --release)
    mkdir -p "$target/release"
    cp "$target/verbs/release/libsanshim_verbs.so" "$target/release/libsanshim_verbs.so"
}

# Builds a test program of the workspace and prints its path: test_program behaviour. (For its package alone cargo would
# build its dependencies once more, with fewer of their features.)
test_program() {
    local built
    built=$(cd "$root" && cargo test --profile tests --workspace --test "$1" --no-run 2>&1) ||
        fail "the test program $1 does not build: $built"
    (cd "$root" && readlink -f "$(sed -n 's/.*Executable.*(\(.*\))$/\1/p' <<<"$built")")
}

# Builds the suite of behaviour cases, with the programs that it compiles where it first runs, and prints its path: the
# RDMA guest has no compiler.
behaviour_suite() {
    local suite
    suite=$(test_program behaviour) || return
    (cd "$root/tests" && "$suite" --list >/dev/null) || fail "the behaviour cases do not compile: see above"
    printf '%s\n' "$suite"
}

# For scripts that run programs under the library as it comes, whatever their user has set: it and sanctl, built unless --library or
# SANSHIM_LIBRARY names another one. sanctl is that beside the library, if there is one.
use_library() {
    local word before='' library='' variable
    for word; do
        case $before in --library) library=$word ;; esac
        case $word in --library=*) library=${word#*=} ;; esac
        before=$word
    done
    library=${library:-${SANSHIM_LIBRARY-}}
    if [[ -z $library ]]; then
        build_release
        library=$target/release/libsanshim.so
    fi
    for variable in "${!SANSHIM@}"; do
        unset "$variable"
    done
    local sanctl
    sanctl=$(dirname "$library")/sanctl
    [[ -x $sanctl ]] || sanctl=$target/release/sanctl
    export SANSHIM_LIBRARY=$library SANCTL=${SANCTL:-$sanctl}
    export PYTHONDONTWRITEBYTECODE=1
}

# Becomes a command that meets nobody: with a network of its own with `lo` alone, its own processes, which end with it, and an empty
# /dev/shm. Where that may not be had it runs beside all others.
alone() {
    local -a enter=(unshare --net --pid --mount --ipc --fork --kill-child --mount-proc)
    local inside='ip link set lo up && mount -t tmpfs tmpfs /dev/shm || exit 125
"$@"
exit $?'
    [[ $(id -u) == 0 ]] || enter+=(--user --map-root-user)
    if "${enter[@]}" sh -c "$inside" sh true 2>/dev/null; then
        exec "${enter[@]}" sh -c "$inside" sh "$@"
    fi
    say "no namespaces of its own can be had: what others do in /dev/shm counts, too"
    exec "$@"
}
