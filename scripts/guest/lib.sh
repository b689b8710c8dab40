# Shared by what runs inside the RDMA guest. Sourced by bash, never run by itself.
# Provides: shim, install_shim, sent, fail, failed, listening.
# shellcheck shell=bash

# Both hosts of the guest share one kernel, where shared memory would be chosen.
# shellcheck disable=SC2034 # used by the scripts that source this
shim='env SANSHIM_PROVIDERS=verbs LD_PRELOAD=/tmp/san/libsanshim.so'
failed=''

# What 9p would make slow: one copy for all processes, in /tmp/san; and /tmp/between.
install_shim() { # FOLDER LIBRARY [BETWEEN]
    mkdir -p /tmp/san
    cp "$1/libsanshim.so" /tmp/san/
    [[ ! -e $1/sanctl ]] || cp "$1/sanctl" /tmp/san/
    cp "$2" /tmp/san/libsanshim_verbs.so
    [[ -z ${3-} ]] || cp "$3" /tmp/between
}

# Packets that a device has sent: what TCP carried instead does not show there.
sent() { cat "/sys/class/infiniband/rxe_$1/ports/1/hw_counters/sent_pkts"; }

fail() { echo "FAILED: $*" >&2; failed=yes; }

# Waits until something listens at a port; asked without the shim.
listening() { # PORT
    for _ in {1..300}; do
        (exec 3<>"/dev/tcp/10.77.0.2/$1") 2>/dev/null && return
        sleep 0.1
    done
    fail "nothing listens at $1"
}
