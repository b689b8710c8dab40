//! libc's syscall(), which is another door to the same operations. Each goes to the hook of its name, or of its own
//! form where libc's function differs from the kernel's. A call that is not about descriptors of ours goes on to the
//! kernel. This module decides nothing.

use super::asynchronous::prepare_submission;
use super::batches::{recvmmsg, sendmmsg};
use super::descriptor::{after_fcntl, close, close_range, dup, dup2, dup3, ioctl};
use super::kernel_waits;
use super::message::{recvmsg, sendmsg};
use super::namespaces::{chroot, setns, unshare};
use super::options::{getpeername, getsockopt, setsockopt};
use super::process::{execve, execveat, prctl};
use super::readiness::{epoll_create, epoll_create1, epoll_ctl};
use super::setup::{accept, accept4, connect, listen, shutdown, socket};
use super::transfer::{
    fail, preadv2, pwritev2, read, readv, recvfrom, sendfile, sendto, splice, write, writev,
};
use crate::real::hooks;
use libc::{c_int, c_long, c_uint};
use sanshim_core::switch::bring_back::before_confinement;
use sanshim_core::switch::setup::before_user_change;
use sanshim_core::switch::table::is_known;
use sanshim_core::sys::actions;
use sanshim_core::sys::handlers::before_set;
use sanshim_core::sys::process::expect_borrower;
use sanshim_core::sys::user;

/// Operations of seccomp() that forbid system calls.
const SECCOMP_STRICT: u32 = 0;
const SECCOMP_FILTER: u32 = 1;

/// The arguments of a call.
type Arguments = [usize; 6];

/// The call of that number, as libc's syscall() makes it.
type Kernel<'a> = &'a dyn Fn(Arguments) -> isize;

/// Runs a hook with the kernel's own call for libc's function. That could be another preloaded library's, which may make the
/// call by number itself.
macro_rules! numbered {
    ($pass:ident, $name:ident($($argument:expr),*)) => {
        $name::by($($argument,)* |$(numbered!(@ignored $argument)),*| $pass() as _)
    };
    (@ignored $argument:expr) => { _ };
}

/// Calls that move bytes. `None` for any other.
///
/// # Safety
/// The arguments are the program's own, as the kernel wants them for this call.
unsafe fn transfer(
    number: c_long,
    all @ [a, b, c, d, e, f]: Arguments,
    kernel: Kernel<'_>,
) -> Option<isize> {
    let pass = || kernel(all);
    let fd = a as c_int;
    let is_ours = match number {
        // A message may take descriptors along.
        libc::SYS_sendmsg | libc::SYS_sendmmsg => true,
        libc::SYS_sendfile => is_known(fd) || is_known(b as c_int),
        libc::SYS_splice => is_known(fd) || is_known(c as c_int),
        _ => is_known(fd),
    };
    if !is_ours {
        return None;
    }
    // SAFETY: the kernel's arguments and libc's are the same for all of these.
    let result = unsafe {
        match number {
            libc::SYS_read => numbered!(pass, read(fd, b as _, c)),
            libc::SYS_write => numbered!(pass, write(fd, b as _, c)),
            libc::SYS_readv => numbered!(pass, readv(fd, b as _, c as c_int)),
            libc::SYS_writev => numbered!(pass, writev(fd, b as _, c as c_int)),
            libc::SYS_preadv2 => {
                numbered!(pass, preadv2(fd, b as _, c as c_int, d as _, f as c_int))
            }
            libc::SYS_pwritev2 => {
                numbered!(pass, pwritev2(fd, b as _, c as c_int, d as _, f as c_int))
            }
            libc::SYS_sendto => numbered!(pass, sendto(fd, b as _, c, d as c_int, e as _, f as _)),
            libc::SYS_recvfrom => {
                numbered!(pass, recvfrom(fd, b as _, c, d as c_int, e as _, f as _))
            }
            libc::SYS_sendmsg => numbered!(pass, sendmsg(fd, b as _, c as c_int)),
            libc::SYS_recvmsg => numbered!(pass, recvmsg(fd, b as _, c as c_int)),
            libc::SYS_sendmmsg => {
                numbered!(pass, sendmmsg(fd, b as _, c as c_uint, d as c_int)) as isize
            }
            libc::SYS_recvmmsg => {
                numbered!(pass, recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _)) as isize
            }
            libc::SYS_sendfile => numbered!(pass, sendfile(fd, b as c_int, c as _, d)),
            libc::SYS_splice => {
                numbered!(pass, splice(fd, b as _, c as c_int, d as _, e, f as c_uint))
            }
            _ => return None,
        }
    };
    Some(result)
}

/// Calls that make, change and end sockets and descriptors. `None` for any other.
///
/// # Safety
/// As for [`transfer`].
unsafe fn descriptor(
    number: c_long,
    all @ [a, b, c, d, e, _]: Arguments,
    kernel: Kernel<'_>,
) -> Option<isize> {
    let pass = || kernel(all);
    let fd = a as c_int;
    // SAFETY: the kernel's arguments and libc's are the same for all of these but fcntl, whose answers libc's changes.
    let result = unsafe {
        match number {
            libc::SYS_socket => numbered!(pass, socket(a as c_int, b as c_int, c as c_int)),
            libc::SYS_listen => numbered!(pass, listen(fd, b as c_int)),
            libc::SYS_accept => numbered!(pass, accept(fd, b as _, c as _)),
            libc::SYS_accept4 => numbered!(pass, accept4(fd, b as _, c as _, d as c_int)),
            libc::SYS_connect => numbered!(pass, connect(fd, b as _, c as _)),
            libc::SYS_shutdown => numbered!(pass, shutdown(fd, b as c_int)),
            libc::SYS_close => numbered!(pass, close(fd)),
            libc::SYS_close_range => {
                close_range::by(a as c_uint, b as c_uint, c as c_int, |first, last, flags| {
                    kernel([first as usize, last as usize, flags as usize, 0, 0, 0]) as c_int
                })
            }
            libc::SYS_dup => numbered!(pass, dup(fd)),
            libc::SYS_dup2 => numbered!(pass, dup2(fd, b as c_int)),
            libc::SYS_dup3 => numbered!(pass, dup3(fd, b as c_int, c as c_int)),
            libc::SYS_fcntl => {
                let result = pass() as c_int;
                after_fcntl(fd, b as c_int, c as _, result);
                result
            }
            libc::SYS_ioctl => numbered!(pass, ioctl(fd, b as _, c as _)),
            libc::SYS_getpeername => numbered!(pass, getpeername(fd, b as _, c as _)),
            libc::SYS_getsockopt => {
                numbered!(pass, getsockopt(fd, b as c_int, c as c_int, d as _, e as _))
            }
            libc::SYS_setsockopt => {
                numbered!(pass, setsockopt(fd, b as c_int, c as c_int, d as _, e as _))
            }
            _ => return None,
        }
    };
    Some(result as isize)
}

/// Calls that wait for descriptors. `None` for any other.
///
/// # Safety
/// As for [`transfer`].
unsafe fn readiness(
    number: c_long,
    all @ [a, b, c, d, ..]: Arguments,
    kernel: Kernel<'_>,
) -> Option<isize> {
    let pass = &|| kernel(all);
    // SAFETY: the kernel's arguments, which are the same as libc's for those of epoll sets.
    let result = unsafe {
        match number {
            libc::SYS_poll => kernel_waits::poll(all, pass),
            libc::SYS_ppoll => kernel_waits::ppoll(all, pass),
            libc::SYS_select => kernel_waits::select(all, pass),
            libc::SYS_pselect6 => kernel_waits::pselect6(all, pass),
            libc::SYS_epoll_create => numbered!(pass, epoll_create(a as c_int)) as isize,
            libc::SYS_epoll_create1 => numbered!(pass, epoll_create1(a as c_int)) as isize,
            libc::SYS_epoll_ctl => {
                numbered!(pass, epoll_ctl(a as c_int, b as c_int, c as c_int, d as _)) as isize
            }
            libc::SYS_epoll_wait => kernel_waits::epoll_wait([a, b, c, d, 0, 0], pass),
            libc::SYS_epoll_pwait => kernel_waits::epoll_wait(all, pass),
            libc::SYS_epoll_pwait2 => kernel_waits::epoll_pwait2(all, pass),
            _ => return None,
        }
    };
    Some(result)
}

/// Calls that concern the process as a whole, and those that are refused. `None` for any other.
///
/// # Safety
/// As for [`transfer`].
unsafe fn process(
    number: c_long,
    all @ [a, b, c, d, e, _]: Arguments,
    kernel: Kernel<'_>,
) -> Option<isize> {
    let pass = || kernel(all);
    let fd = a as c_int;
    // SAFETY: the kernel's arguments and libc's are the same for all of these.
    let result = unsafe {
        match number {
            libc::SYS_execve => numbered!(pass, execve(a as _, b as _, c as _)),
            libc::SYS_execveat => numbered!(pass, execveat(fd, b as _, c as _, d as _, e as c_int)),
            libc::SYS_chroot => numbered!(pass, chroot(a as _)),
            libc::SYS_unshare => numbered!(pass, unshare(a as c_int)),
            libc::SYS_setns => numbered!(pass, setns(fd, b as c_int)),
            libc::SYS_prctl => numbered!(pass, prctl(fd, b as _, c as _, d as _, e as _)),
            libc::SYS_io_submit if prepare_submission(c as _, b as c_long) => return None,
            libc::SYS_io_submit => return Some(fail(libc::EOPNOTSUPP)),
            // The operations of a ring cannot be seen. Programs that find no io_uring use other calls.
            libc::SYS_io_uring_setup => return Some(fail(libc::ENOSYS)),
            _ => return None,
        }
    };
    Some(result as isize)
}

/// Does what is necessary before a call that the kernel serves.
fn prepare(number: c_long, [a, b, ..]: Arguments) {
    match number {
        libc::SYS_rt_sigaction => {
            // The kernel's own form of the action begins with the handler too.
            if let Ok(handler) = user::read(b as *const usize) {
                before_set(a as c_int, handler);
            }
        }
        libc::SYS_seccomp if matches!(a as u32, SECCOMP_STRICT | SECCOMP_FILTER) => {
            before_confinement();
        }
        libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => expect_borrower(),
        libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => before_user_change(),
        _ => {}
    }
}

/// True if the call may make a descriptor of another process ready.
fn is_action(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_pwritev2
            | libc::SYS_sendto
            | libc::SYS_sendfile
            | libc::SYS_splice
            | libc::SYS_tee
            | libc::SYS_vmsplice
            | libc::SYS_timerfd_settime
            | libc::SYS_kill
            | libc::SYS_tgkill
            | libc::SYS_tkill
            | libc::SYS_rt_sigqueueinfo
    )
}

/// Large, for all hooks are in it. So it lies apart from what each fork child runs through.
///
/// # Safety
/// As for [`transfer`].
#[inline(never)]
#[link_section = ".text.unlikely.sanshim_numbers"]
unsafe fn serve(number: c_long, all: Arguments, kernel: Kernel<'_>) -> isize {
    // SAFETY: the caller's promise.
    let served = unsafe {
        transfer(number, all, kernel)
            .or_else(|| descriptor(number, all, kernel))
            .or_else(|| readiness(number, all, kernel))
            .or_else(|| process(number, all, kernel))
    };
    served.unwrap_or_else(|| {
        prepare(number, all);
        let result = kernel(all);
        if is_action(number) {
            actions::note();
        }
        result
    })
}

hooks! {
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize)
        -> c_long
    = |real| {
        let all = [a, b, c, d, e, f];
        let kernel = |[a, b, c, d, e, f]: Arguments| real(number, a, b, c, d, e, f) as isize;
        // SAFETY: the program's own arguments.
        unsafe { serve(number, all, &kernel) as c_long }
    }
}
