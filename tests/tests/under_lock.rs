//! Which system calls threads make while they own the structure lock, as a tracer counts them (tests/under_lock/): a call
//! of libc's, of a crate's or of a handler's is seen too, and the library is a release build.
//! [`check`](../../core/src/sys/under_lock.rs) judges the arguments of the library's own calls in debug builds.

use sanshim_tests::behaviour::{build, shim_library};
use sanshim_tests::plans::compiled;
use sanshim_tests::programs::{locate, Sandbox};
use std::collections::BTreeMap;
use std::ffi::c_long;
use std::path::Path;
use std::process::Command;

/// Cases in which sockets come, move, go back, fork and go, as (area, case).
const CASES: [(&str, &str); 8] = [
    ("detach", "large_polled_connector"),
    ("ended", "reset"),
    ("forking", "child_closes_its_copy"),
    ("forking", "snapshots_under_load"),
    ("images", "fork_exec"),
    ("images", "spawn"),
    ("passing", "both_go_on"),
    ("set_up", "plain_acceptor_waits_poll"),
];
/// Calls that wait for no other process, whatever their arguments are.
const NEVER_WAIT: [c_long; 44] = [
    // About descriptors and sockets.
    libc::SYS_bind,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ioctl,
    libc::SYS_listen,
    // The kernel holds this one up while the other process is in the middle of an exec, and no longer.
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_open,
    libc::SYS_pipe2,
    libc::SYS_prctl,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socket,
    // Memory.
    libc::SYS_madvise,
    libc::SYS_memfd_create,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Files of shared memory and of /proc.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readlinkat,
    libc::SYS_renameat2,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    // The process itself, and locks of the library that come after this one in their order.
    libc::SYS_clock_gettime,
    libc::SYS_clone,
    libc::SYS_futex,
    libc::SYS_geteuid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_kill,
    libc::SYS_prlimit64,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sched_yield,
];
/// Calls that wait, or not, by their arguments or by what the descriptor is. Debug builds judge each of them.
const JUDGED: [c_long; 12] = [
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_fcntl,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
];

/// Where the lock's word lies in the library, in hexadecimal.
fn offset_of_lock(library: &Path) -> String {
    let output = Command::new("readelf").args(["--syms", "--wide"]).arg(library).output();
    let output = output.expect("readelf runs; see scripts/install");
    let symbols = String::from_utf8(output.stdout).expect("UTF-8");
    let line = symbols.lines().find(|line| line.contains("socket9structure4LOCK"));
    let line = line.expect("the library has its symbols");
    line.split_whitespace().nth(1).expect("a value").to_owned()
}

#[test]
fn no_call_that_waits_is_made_under_the_structure_lock() {
    let library = shim_library().expect("the library");
    let sandbox = Sandbox::new();
    let tracer = compiled("under_lock", &sandbox);
    let programs =
        build(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("behaviour")).expect("the programs");
    let mut counts = BTreeMap::<c_long, u64>::new();
    for (area, case) in CASES {
        let program = programs.iter().find(|program| program.area == area).expect("an area");
        let output = Command::new(&tracer)
            .arg(&library)
            .arg(offset_of_lock(&library))
            .args([program.path.as_os_str(), case.as_ref()])
            .env("SANSHIM_MOVE_AFTER", "0")
            .env("SANCTL", locate::sanctl())
            .output()
            .expect("the tracer runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{area}::{case}: {said}");
        for line in String::from_utf8(output.stdout).expect("text").lines() {
            let (call, count) = line.split_once(' ').expect("a call and a number");
            let count: u64 = count.parse().expect("a number");
            *counts.entry(call.parse().expect("a number")).or_default() += count;
        }
    }
    assert!(counts.len() > JUDGED.len(), "the lock was not seen: {counts:?}");
    counts.retain(|call, _| !NEVER_WAIT.contains(call) && !JUDGED.contains(call));
    assert!(counts.is_empty(), "calls that nobody judged, with their counts: {counts:?}");
}
