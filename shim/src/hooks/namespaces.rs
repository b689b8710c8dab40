//! unshare and setns: into another PID namespace, where threads of this process have other numbers.

use crate::real::hooks;
use libc::c_int;
use sanshim_core::switch::exec::before_other_pids;
use sanshim_core::sys::process::is_pid_namespace;

hooks! {
    fn unshare(flags: c_int) -> c_int = |real| {
        if flags & libc::CLONE_NEWPID != 0 {
            before_other_pids();
        }
        real(flags)
    }

    fn setns(fd: c_int, kind: c_int) -> c_int = |real| {
        if kind & libc::CLONE_NEWPID != 0 || (kind == 0 && is_pid_namespace(fd)) {
            before_other_pids();
        }
        real(fd, kind)
    }
}
