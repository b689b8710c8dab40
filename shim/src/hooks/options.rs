//! getsockopt and setsockopt.

use super::returned;
use crate::real::hooks;
use libc::{c_int, c_void, socklen_t};
use sanshim_core::switch::{options, table};

/// An option value of int size, if the program gave one.
unsafe fn integer(value: *const c_void, length: socklen_t) -> Option<c_int> {
    if value.is_null() || (length as usize) < size_of::<c_int>() {
        return None;
    }
    // SAFETY: at least an int is readable there.
    Some(unsafe { value.cast::<c_int>().read_unaligned() })
}

hooks! {
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t)
        -> c_int
    = |real| {
        if !table::is_known(fd) {
            return real(fd, level, name, value, length);
        }
        // SAFETY: the program gave `length` bytes.
        let number = unsafe { integer(value, length) };
        if let Some(e) = number.and_then(|n| options::refuses(fd, level, name, n)) {
            return returned(Err(e)) as c_int;
        }
        let result = real(fd, level, name, value, length);
        let Some(number) = number.filter(|_| result == 0) else { return result };
        if level == libc::SOL_SOCKET && name == libc::SO_LINGER {
            // SAFETY: the kernel took a linger there.
            let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
            options::linger_was_set(fd, linger.l_onoff != 0, linger.l_linger);
        } else {
            options::was_set(fd, level, name, number);
        }
        result
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void,
        length: *mut socklen_t) -> c_int
    = |real| {
        if level == libc::SOL_SOCKET && name == libc::SO_ERROR && table::is_known(fd) {
            let ours = options::error(fd);
            let result = real(fd, level, name, value, length);
            // SAFETY: the kernel has just written there, so an int fits.
            if let (Some(e), 0) = (ours, result) {
                unsafe { value.cast::<c_int>().write_unaligned(e) };
            }
            return result;
        }
        real(fd, level, name, value, length)
    }
}
