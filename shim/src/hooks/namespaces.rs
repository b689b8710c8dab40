//! unshare and setns, which may lead into another PID namespace, where threads of this process have other numbers. And
//! chroot. After any of them the folder of the registry may be another one, so the process gets its file before.

use crate::real::hooks;
use libc::{c_char, c_int};
use sanshim_core::switch::bring_back::{before_other_pids, same_pids_after_all};
use sanshim_core::switch::unpublished;
use sanshim_core::sys::errno;
use sanshim_core::sys::process::is_pid_namespace;

fn around(concerns: bool, call: impl FnOnce() -> c_int) -> c_int {
    unpublished::publish();
    if !concerns {
        return call();
    }
    let changed = before_other_pids();
    let result = call();
    if result < 0 && changed {
        errno::kept(same_pids_after_all);
    }
    result
}

hooks! {
    fn unshare(flags: c_int) -> c_int = |real| {
        let concerns = flags & libc::CLONE_NEWPID != 0;
        around(concerns, || real(flags))
    }

    fn setns(fd: c_int, kind: c_int) -> c_int = |real| {
        let concerns = kind & libc::CLONE_NEWPID != 0 || (kind == 0 && is_pid_namespace(fd));
        around(concerns, || real(fd, kind))
    }

    fn chroot(folder: *const c_char) -> c_int = |real| {
        unpublished::publish();
        real(folder)
    }
}
