//! stdio over a SAN socket. libc's streams call the kernel directly, so fdopen gets a stream whose
//! reads and writes come back through the hooks.

use super::descriptor::close;
use super::transfer::{read, write};
use crate::real::{hooks, set_errno};
use libc::{c_char, c_int, c_void, off64_t, size_t, ssize_t, FILE};
use sanshim_core::switch::table;

#[repr(C)]
#[derive(Clone, Copy)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

unsafe extern "C-unwind" fn read_cookie(fd: *mut c_void, to: *mut c_char, n: size_t) -> ssize_t {
    // SAFETY: stdio gives its own buffer.
    unsafe { read(fd as usize as c_int, to.cast(), n) }
}

unsafe extern "C-unwind" fn write_cookie(
    fd: *mut c_void,
    from: *const c_char,
    n: size_t,
) -> ssize_t {
    // A cookie's failure is zero bytes, not -1.
    // SAFETY: stdio gives its own buffer.
    unsafe { write(fd as usize as c_int, from.cast(), n) }.max(0)
}

unsafe extern "C-unwind" fn seek_cookie(_: *mut c_void, _: *mut off64_t, _: c_int) -> c_int {
    set_errno(libc::ESPIPE);
    -1
}

unsafe extern "C-unwind" fn close_cookie(fd: *mut c_void) -> c_int {
    // SAFETY: the descriptor belongs to the stream.
    unsafe { close(fd as usize as c_int) }
}

/// Offset of the descriptor in glibc's FILE on 64-bit machines, for fileno.
const FILENO_OFFSET: usize = 112;

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = |real| {
        if table::san(fd).is_none() {
            return real(fd, mode);
        }
        let functions = Functions {
            read: read_cookie,
            write: write_cookie,
            seek: seek_cookie,
            close: close_cookie,
        };
        // SAFETY: the functions match their contracts; the mode is the program's.
        let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
        if !stream.is_null() {
            // SAFETY: a FILE of glibc's has its descriptor there.
            unsafe { stream.cast::<u8>().add(FILENO_OFFSET).cast::<c_int>().write(fd) };
        }
        stream
    }

    // The list of arguments is an array type, which travels as a pointer.
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int = |real| {
        if table::san(fd).is_none() {
            return real(fd, format, arguments);
        }
        extern "C" {
            fn vasprintf(to: *mut *mut c_char, format: *const c_char, arguments: *mut c_void)
                -> c_int;
        }
        let mut text = std::ptr::null_mut();
        // SAFETY: the program's format and arguments.
        let length = unsafe { vasprintf(&mut text, format, arguments) };
        if length < 0 {
            return -1;
        }
        let mut done = 0;
        while done < length {
            // SAFETY: within the text.
            let n = unsafe {
                write(fd, text.add(done as usize).cast(), (length - done) as usize)
            };
            if n < 0 {
                done = -1;
                break;
            }
            done += n as c_int;
        }
        // SAFETY: vasprintf allocated it.
        unsafe { libc::free(text.cast()) };
        done
    }
}
