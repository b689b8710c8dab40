//! getsockopt, setsockopt and getpeername.

use super::returned;
use crate::real::hooks;
use libc::{c_int, c_void, sockaddr, socklen_t};
use sanshim_core::switch::options::{self, Answer};
use sanshim_core::switch::table;
use sanshim_core::sys::{user, Errno};

/// The value of an option that is an int, if the program gave one that is large enough.
fn integer(value: *const c_void, length: socklen_t) -> Option<c_int> {
    if (length as usize) < size_of::<c_int>() {
        return None;
    }
    user::read(value.cast::<c_int>()).ok()
}

/// Puts our value in the place of the kernel's. Only as much of it is written as the program asked for.
///
/// # Safety
/// `*length` bytes at `value` are writable.
unsafe fn store(value: *mut c_void, length: *const socklen_t, bytes: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe {
        let n = bytes.len().min(*length as usize);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), n);
    }
}

hooks! {
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t)
        -> c_int
    = |real| {
        if !table::is_known(fd) {
            return real(fd, level, name, value, length);
        }
        let number = integer(value, length);
        if let Some(e) = options::refuses(fd, level, name, number) {
            return returned(Err(e)) as c_int;
        }
        let result = real(fd, level, name, value, length);
        if let Some(number) = number.filter(|_| result == 0) {
            options::after_set(fd, level, name, number);
        }
        result
    }

    fn getpeername(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int = |real| {
        let result = real(fd, to, length);
        if result == 0 && table::is_known(fd) && options::look_for_close(fd) {
            return returned(Err(Errno(libc::ENOTCONN))) as c_int;
        }
        result
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void,
        length: *mut socklen_t) -> c_int
    = |real| {
        let ours = if table::is_known(fd) { options::answer(fd, level, name) } else { None };
        if let Some(Answer::Fails(e)) = ours {
            return returned(Err(e)) as c_int;
        }
        let result = real(fd, level, name, value, length);
        let answer = ours.filter(|_| result == 0);
        if let Some(bytes) = answer.as_ref().and_then(Answer::bytes) {
            // SAFETY: the kernel has just written there.
            unsafe { store(value, length, bytes) };
        }
        result
    }
}
