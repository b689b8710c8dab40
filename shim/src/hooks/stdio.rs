//! stdio on a socket. libc's streams call the kernel directly, so a connection that gets one goes back to TCP, or stays
//! there. dprintf, which writes once, goes through the hooks.

use super::transfer::{find, write};
use crate::real::{hooks, libc_symbol};
use libc::{c_char, c_int, c_void, FILE};
use sanshim_core::switch::bring_back::before_unhooked_use;
use sanshim_core::sys::errno;

fn open(fd: c_int, real: impl FnOnce() -> *mut FILE) -> *mut FILE {
    if before_unhooked_use(fd) {
        return real();
    }
    errno::set(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = |real| { open(fd, || real(fd, mode)) }

    // The name that old programs were linked with.
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = |real| { open(fd, || real(fd, mode)) }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void)
        -> c_int
    = |real| {
        if find(fd).is_none() {
            return real(fd, flag, format, arguments);
        }
        // SAFETY: the same contract but for the check.
        unsafe { vdprintf(fd, format, arguments) }
    }

    // The list of arguments is of an array type, which is passed as a pointer.
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

/// dprintf is variadic, which a Rust function cannot be. So the registers that hold its arguments are laid out as a
/// va_list, and vdprintf does the rest.
#[cfg(target_arch = "x86_64")]
macro_rules! variadic_printf {
    ($symbol:ident, $name:ident, $fixed:literal, $target:path, $shuffle:literal) => {
        libc_symbol!($symbol = $name hooked by $name as unsafe extern "C-unwind" fn() -> c_int);

        #[no_mangle]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() -> c_int {
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 208",
                // The registers are saved from rsp + 32 on.
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
                // The va_list lies at rsp. It says that the named arguments are used up.
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

// The arguments are (descriptor, format, ...) and (descriptor, flag, format, ...).
#[cfg(target_arch = "x86_64")]
variadic_printf!(DPRINTF, dprintf, "16", vdprintf, "");
#[cfg(target_arch = "x86_64")]
variadic_printf!(DPRINTF_CHK, __dprintf_chk, "24", vdprintf, "mov rsi, rdx");
