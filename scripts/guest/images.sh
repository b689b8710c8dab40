# The images that scripts/rdma-guest boots, made of Debian packages and kept in a cache. Nothing is
# installed on the host. Sourced after lib.sh; provides cache, prepare_images and guest_qemu.
# shellcheck shell=bash

cache=${SANSHIM_GUEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sanshim/rdma-guest}

guest_packages='bash coreutils libc-bin util-linux mount findutils grep sed gawk procps kmod
    busybox-static iproute2 iputils-ping strace libgcc-s1 libstdc++6 rdma-core libibverbs1
    ibverbs-providers ibverbs-utils librdmacm1 rdmacm-utils perftest
    iperf3 redis-server redis-tools nginx-light'
# Wanted only by maintainer scripts, which the guest never runs.
guest_skips='perl perl-base perl-modules-5.36 libperl5.36 usrmerge libnumber-compare-perl
    libtext-glob-perl libfile-find-rule-perl dpkg debconf adduser passwd udev lsb-base
    init-system-helpers sysvinit-utils pci.ids libdb5.3 gcc-12-base iso-codes'
modules_to_boot='virtio_pci virtio_blk virtio_console 9p 9pnet_virtio ext4 crc32c_generic'
# Soft-RoCE asks for crc32 by algorithm, so depmod does not know that it needs crc32_generic.
modules_later='crc32_generic libcrc32c veth 8021q bonding bridge rdma_rxe ib_uverbs rdma_ucm rdma_cm sch_netem sch_prio cls_u32 tcp_diag inet_diag
    unix_diag virtio_rng smc smc_diag'

# Has prepare_images use the newest kernel that apt knows for this release (backports or security), and a cache beside the
# stock kernel's.
take_newer_kernel() {
    local package
    cache=$cache-newer
    mkdir -p "$cache"
    package=$(apt-cache search --names-only '^linux-image-[0-9.]+[+]deb[0-9]+-amd64-unsigned$' | cut -d' ' -f1 | sort -V | tail -n 1)
    [[ -n $package ]] || fail_guest "apt's lists have no newer kernel; SANSHIM_GUEST_KERNEL may name a package's file"
    compgen -G "$cache/${package}_*.deb" >/dev/null || (cd "$cache" && apt-get -q download "$package") >&2 ||
        fail_guest "$package cannot be downloaded: is 'apt-get update' due?"
    SANSHIM_GUEST_KERNEL=$(compgen -G "$cache/${package}_*.deb" | tail -n 1)
}

prepare_images() {
    local stamp
    stamp=$(cat "${BASH_SOURCE[0]}" ${SANSHIM_GUEST_KERNEL:+"$SANSHIM_GUEST_KERNEL"} | sha256sum | cut -c1-16)
    mkdir -p "$cache"
    # Runs at the same time share the cache: one prepares, the others wait.
    exec {cache_lock}>"$cache/lock"
    flock "$cache_lock"
    if [[ $(cat "$cache/stamp" 2>/dev/null) != "$stamp" ]]; then
        say "preparing the RDMA guest's images in $cache"
        for tool in apt-get dpkg-deb mke2fs xz; do
            command -v "$tool" >/dev/null ||
                fail_guest "$tool is missing; the guest is made on Debian and its kin"
        done
        rm -rf "${cache:?}"/{stamp,root.img,initramfs,root,kernel,qemu,*-packages}
        make_qemu && make_root && make_kernel && make_initramfs && make_root_image || return 1
        rm -rf "${cache:?}"/{root,*-packages}
        echo "$stamp" >"$cache/stamp"
    fi
    flock -u "$cache_lock"
    exec {cache_lock}>&-
}

# Debian's QEMU, run from the cache with its own libraries. Should the script be killed outright,
# QEMU goes with it.
guest_qemu() {
    local libraries=$cache/qemu/usr/lib/x86_64-linux-gnu:$cache/qemu/lib/x86_64-linux-gnu
    LD_LIBRARY_PATH=$libraries exec setpriv --pdeathsig KILL \
        "$cache/qemu/usr/bin/qemu-system-x86_64" -L "$cache/qemu/usr/share/qemu" \
        -L "$cache/qemu/usr/share/seabios" "$@"
}

# packages_for STATUS PACKAGE... : what apt would install beside what the file STATUS says is there.
packages_for() {
    local status=$1
    shift
    apt-get install -s --no-install-recommends -o "Dir::State::status=$status" "$@" |
        awk '/^Inst/ { print $2 }'
}

# unpack FOLDER PACKAGE... : downloads Debian packages and unpacks them over FOLDER. Package lists
# may name versions that are gone, so a failure is tried again with new lists.
unpack() {
    local into=$1 log=$cache/download.log packages archive
    shift
    packages=$(basename "$into")-packages
    mkdir -p "$into" "$cache/$packages"
    download() { (cd "$cache/$packages" && apt-get -q download "$@") >>"$log" 2>&1; }
    : >"$log"
    download "$@" || { apt-get -q update >>"$log" 2>&1 && download "$@"; } || {
        tail -n 20 "$log" >&2
        return 1
    }
    for archive in "$cache/$packages"/*.deb; do
        unpack_archive "$into" "$archive" || return 1
    done
}

unpack_archive() { # FOLDER ARCHIVE
    dpkg-deb --fsys-tarfile "$2" | tar -x --keep-directory-symlink -C "$1"
}

merged_root() {
    local folder
    mkdir -p "$1"/usr/{bin,sbin,lib,lib64}
    for folder in bin sbin lib lib64; do ln -sfn "usr/$folder" "$1/$folder"; done
}

make_qemu() {
    local list
    apt-cache show qemu-system-x86 >/dev/null 2>&1 || apt-get -q update >/dev/null
    list=$(packages_for /var/lib/dpkg/status qemu-system-x86)
    # shellcheck disable=SC2086 # a list of words
    unpack "$cache/qemu" ${list:-qemu-system-x86}
}

make_root() {
    local list tree=$cache/root
    : >"$cache/nothing-installed"
    # shellcheck disable=SC2086 # a list of words
    list=$(packages_for "$cache/nothing-installed" $guest_packages |
        grep -vxFf <(tr -s ' \n' '\n' <<<"$guest_skips"))
    merged_root "$tree"
    # shellcheck disable=SC2086
    unpack "$tree" $list || return 1
    rm -rf "$tree"/usr/share/{doc,man,locale,info,lintian,bug} "$tree"/usr/lib/x86_64-linux-gnu/perl*
    mkdir -p "$tree"/{proc,sys,dev,run,tmp,root,control,etc} "$tree"/var/{lib/redis,log/nginx,lib/nginx}
    [[ -e $tree/usr/bin/sh ]] || ln -s dash "$tree/usr/bin/sh"
    [[ -e $tree/usr/bin/awk ]] || ln -s gawk "$tree/usr/bin/awk"
    echo 'root:x:0:0:root:/root:/bin/bash' >"$tree/etc/passwd"
    echo 'root:x:0:' >"$tree/etc/group"
    printf '127.0.0.1 localhost\n10.77.0.1 host-a\n10.77.0.2 host-b\n' >"$tree/etc/hosts"
    printf 'hosts: files\npasswd: files\ngroup: files\n' >"$tree/etc/nsswitch.conf"
    ldconfig -r "$tree"
}

make_kernel() {
    local package tree=$cache/kernel/tree
    merged_root "$tree"
    if [[ -n ${SANSHIM_GUEST_KERNEL-} ]]; then
        unpack_archive "$tree" "$SANSHIM_GUEST_KERNEL" || return 1
    else
        package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
        [[ -n $package ]] || { echo 'no linux-image-amd64 in the package lists' >&2; return 1; }
        unpack "$tree" "$package" || return 1
    fi
    version=$(ls "$tree/usr/lib/modules")
    find "$tree/usr/lib/modules" -name '*.ko.xz' -exec xz -d {} +
    # An unpacked kernel starts at once; unpacking itself under emulation takes seconds.
    extract_kernel "$tree/boot/vmlinuz-$version" >"$cache/kernel/vmlinux" &&
        index_modules "$tree"
}

# What the kernel's scripts/extract-vmlinux does, for the formats Debian uses.
extract_kernel() {
    local magic tool at unpacked
    unpacked=$(mktemp)
    while read -r magic tool; do
        for at in $(LC_ALL=C grep -aboP "$magic" "$1" | cut -d: -f1); do
            tail -c "+$((at + 1))" "$1" | "$tool" -dcq >"$unpacked" 2>/dev/null || true
            [[ $(head -c4 "$unpacked" | od -An -tx1) == ' 7f 45 4c 46' ]] || continue
            cat "$unpacked"
            rm -f "$unpacked"
            return 0
        done
    done < <(printf '%s\n' '\xfd7zXZ\x00 xz' '\x28\xb5\x2f\xfd zstd' '\x1f\x8b\x08 gzip')
    rm -f "$unpacked"
    echo "cannot unpack $1" >&2
    return 1
}

# depmod of the guest, run by the guest's own loader: the host may have none.
index_modules() {
    local tree=$cache/root
    "$tree/lib64/ld-linux-x86-64.so.2" --argv0 depmod --library-path \
        "$tree/usr/lib/x86_64-linux-gnu" "$tree/usr/bin/kmod" -b "$1" "$version"
}

# modules_with_needs NAME... : their files and those they need, in load order.
modules_with_needs() {
    awk -v wanted="$*" '
        function name(path, parts, n) {
            n = split(path, parts, "/"); sub(/\.ko$/, "", parts[n]); gsub(/-/, "_", parts[n])
            return parts[n]
        }
        function add(path) { if (!(path in done)) { done[path] = 1; print path } }
        { sub(/:$/, "", $1); file[name($1)] = $1
          for (i = NF; i > 1; i--) needs[name($1)] = needs[name($1)] " " $i }
        END {
            n = split(wanted, names, " ")
            for (i = 1; i <= n; i++) {
                if (!(names[i] in file)) continue      # built in
                m = split(needs[names[i]], list, " ")
                for (j = 1; j <= m; j++) add(list[j])
                add(file[names[i]])
            }
        }' "$cache/kernel/tree/usr/lib/modules/$version/modules.dep"
}

make_initramfs() {
    local stage=$cache/stage module modules=$cache/kernel/tree/usr/lib/modules/$version
    local busybox=$cache/root/usr/bin/busybox
    rm -rf "$stage"
    mkdir -p "$stage"/{bin,dev,proc,sys,control,newroot,modules}
    cp "$busybox" "$stage/bin/busybox"
    {
        cat <<'INIT'
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
INIT
        # shellcheck disable=SC2086 # a list of words
        for module in $(modules_with_needs $modules_to_boot); do
            cp "$modules/$module" "$stage/modules/"
            echo "insmod /modules/${module##*/}"
        done
        cat <<'INIT'
mount -t 9p -o trans=virtio,version=9p2000.L,msize=131072 control /control || poweroff -f
mount -t ext4 -o noatime /dev/vda /newroot || { echo 'no root image' >/control/error; poweroff -f; }
for place in dev proc sys control; do mount --move /$place /newroot/$place; done
exec switch_root /newroot /bin/bash /control/start
INIT
    } >"$stage/init"
    chmod +x "$stage/init"
    (cd "$stage" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$cache/initramfs"
    rm -rf "$stage"
}

make_root_image() {
    local tree=$cache/root module modules=$cache/kernel/tree/usr/lib/modules/$version
    # shellcheck disable=SC2086 # a list of words
    for module in $(modules_with_needs $modules_to_boot $modules_later); do
        install -D -m644 "$modules/$module" "$tree/usr/lib/modules/$version/$module"
    done
    cp "$modules"/modules.{builtin,builtin.modinfo,order} "$tree/usr/lib/modules/$version/"
    index_modules "$tree" || return 1
    rm -rf "$cache/kernel/tree"
    local megabytes=$(($(du -sm "$tree" | cut -f1) * 12 / 10 + 64))
    mke2fs -qq -F -t ext4 -O ^has_journal,^metadata_csum -E lazy_itable_init=1 -m0 -d "$tree" \
        "$cache/root.img" "${megabytes}M" >/dev/null
}
