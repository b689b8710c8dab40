//! stdio over a SAN socket. libc's streams call the kernel directly, so fdopen gets a stream whose
//! reads and writes come back through the hooks, and so do the standard ones where an image was started
//! with them on the SAN.

use super::descriptor::close;
use super::transfer::{find, read, write};
use crate::real::{hooks, set_errno};
use libc::{c_char, c_int, c_void, off64_t, size_t, ssize_t, FILE};
use sanshim_core::switch::{exec, table};
use std::ffi::CStr;

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

/// A stream on `fd` that goes through the hooks.
unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions {
        read: read_cookie,
        write: write_cookie,
        seek: seek_cookie,
        close: close_cookie,
    };
    // SAFETY: the functions match their contracts; the mode is the caller's.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        // SAFETY: a FILE of glibc's has its descriptor there.
        unsafe { stream.cast::<u8>().add(FILENO_OFFSET).cast::<c_int>().write(fd) };
    }
    stream
}

/// When the library is loaded: the standard streams on sockets that the image before this one left
/// on the SAN are replaced. Where somebody keeps the old ones (libstdc++, which is set up before us),
/// the sockets go back to TCP.
pub(crate) fn replace_standard() {
    const STREAMS: [(&CStr, &CStr); 3] = [(c"stdin", c"r"), (c"stdout", c"w"), (c"stderr", c"w")];
    for (fd, (name, mode)) in (0..).zip(STREAMS) {
        if table::san(fd).is_none() {
            continue;
        }
        // SAFETY: terminated names; libc's variables of these names are of that type, and nobody
        // else runs yet.
        let replaced = unsafe {
            let variable = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).cast::<*mut FILE>();
            let kept = !libc::dlsym(libc::RTLD_DEFAULT, c"_ZSt4cout".as_ptr()).is_null();
            let stream = match variable.is_null() || kept {
                true => std::ptr::null_mut(),
                false => open(fd, mode.as_ptr()),
            };
            if !stream.is_null() {
                if fd == 2 {
                    libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0);
                }
                variable.write(stream);
            }
            !stream.is_null()
        };
        if !replaced {
            exec::give_back(fd);
        }
    }
}

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = |real| {
        if !table::may_be_san(fd) {
            return real(fd, mode);
        }
        // SAFETY: the mode is the program's.
        unsafe { open(fd, mode) }
    }

    // As old programs were linked.
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = |_real| {
        // SAFETY: the same contract.
        unsafe { fdopen(fd, mode) }
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void)
        -> c_int
    = |real| {
        if find(fd).is_none() {
            return real(fd, flag, format, arguments);
        }
        // SAFETY: the same contract but for the check.
        unsafe { vdprintf(fd, format, arguments) }
    }

    // The list of arguments is an array type, which travels as a pointer.
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int = |real| {
        if find(fd).is_none() {
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

/// dprintf is variadic, which a Rust function can not be: the registers that hold the arguments
/// are laid out as a va_list, and vdprintf does the rest.
#[cfg(target_arch = "x86_64")]
macro_rules! variadic_printf {
    ($name:ident, $fixed:literal, $target:path, $shuffle:literal) => {
        #[no_mangle]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() -> c_int {
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 208",
                // The register save area, at rsp + 32.
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                // The va_list, at rsp: the named arguments are used up.
                concat!("mov dword ptr [rsp], ", $fixed),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rbp + 16]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                $shuffle,
                "mov rdx, rsp",
                "call {target}",
                "leave",
                "ret",
                target = sym $target,
            )
        }
    };
}

// (descriptor, format, ...) and (descriptor, flag, format, ...).
#[cfg(target_arch = "x86_64")]
variadic_printf!(dprintf, "16", vdprintf, "");
#[cfg(target_arch = "x86_64")]
variadic_printf!(__dprintf_chk, "24", vdprintf, "mov rsi, rdx");
