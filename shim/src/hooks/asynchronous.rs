//! Asynchronous I/O: that of POSIX, which threads inside libc carry out, and that of the kernel. Neither comes through
//! a hook, so a connection goes back to TCP before a program uses it so. If the connection cannot, the call fails with
//! EOPNOTSUPP.

use super::returned;
use crate::real::hooks;
use libc::{aiocb, c_int, c_long, iocb, sigevent};
use sanshim_core::switch::bring_back;
use sanshim_core::sys::user::{self, Access};
use sanshim_core::sys::{self, errno, Errno};

/// Has the connection of a request go back to TCP; true if the request may be made. libc or the kernel refuses what is no
/// request. The 64-bit variant is the same in the fields that this looks at.
fn prepare_request(request: *const aiocb) -> bool {
    if user::check(request.cast(), size_of::<aiocb>(), Access::Read).is_err() {
        return true;
    }
    // SAFETY: it is readable.
    let (fd, operation) = unsafe { ((*request).aio_fildes, (*request).aio_lio_opcode) };
    operation == libc::LIO_NOP || bring_back::before_unhooked_use(fd)
}

/// As [`prepare_request`], for a call whose operation is not in the request.
fn prepare_use(request: *const aiocb) -> bool {
    user::read(request.cast::<c_int>()).map_or(true, bring_back::before_unhooked_use)
}

/// The entries of an array of pointers, as far as they can be read.
fn entries<T>(list: *const *mut T, count: usize) -> impl Iterator<Item = *mut T> {
    (0..count)
        .map_while(move |i| user::read(list.wrapping_add(i)).ok())
        .filter(|one| !one.is_null())
}

fn prepare_all(list: *const *mut aiocb, count: c_int) -> bool {
    entries(list, count.max(0) as usize).all(|request| prepare_request(request))
}

/// Has the connections of these requests go back to TCP; true if the kernel may be given them.
pub(super) fn prepare_submission(list: *const *mut iocb, count: c_long) -> bool {
    entries(list, count.max(0) as usize)
        .filter_map(|request| user::read(request).ok())
        .all(|request| bring_back::before_unhooked_use(request.aio_fildes as c_int))
}

fn refused() -> c_int {
    returned(Err(Errno(libc::EOPNOTSUPP))) as c_int
}

hooks! {
    fn aio_read(request: *mut aiocb) -> c_int = |real| {
        if prepare_use(request) { real(request) } else { refused() }
    }

    fn aio_read64(request: *mut aiocb) -> c_int = |real| {
        if prepare_use(request) { real(request) } else { refused() }
    }

    fn aio_write(request: *mut aiocb) -> c_int = |real| {
        if prepare_use(request) { real(request) } else { refused() }
    }

    fn aio_write64(request: *mut aiocb) -> c_int = |real| {
        if prepare_use(request) { real(request) } else { refused() }
    }

    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int
    = |real| {
        if prepare_all(list, count) { real(mode, list, count, event) } else { refused() }
    }

    fn lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int
    = |real| {
        if prepare_all(list, count) { real(mode, list, count, event) } else { refused() }
    }
}

/// libaio's function, which makes the system call by an instruction of its own, and reports errors as negative values. It
/// is not called, because it is not found from here where a program loaded libaio with RTLD_LOCAL.
#[no_mangle]
unsafe extern "C-unwind" fn io_submit(
    context: usize,
    count: c_long,
    list: *mut *mut iocb,
) -> c_int {
    if !errno::kept(|| prepare_submission(list, count)) {
        return -libc::EOPNOTSUPP;
    }
    let arguments = [context, count as usize, list as usize, 0, 0, 0];
    // SAFETY: the program's arguments.
    match unsafe { sys::raw(libc::SYS_io_submit as usize, arguments) } {
        Ok(submitted) => submitted as c_int,
        Err(Errno(e)) => -e,
    }
}
