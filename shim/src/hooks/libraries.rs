//! Libraries that find libc's functions before ours: what dlopen loads with RTLD_DEEPBIND, as PHP loads its extensions,
//! and what dlmopen loads into a namespace of its own, with a libc of its own. They may wait for, read or write
//! connections that the program gives them past the hooks. So all connections are on TCP from then on.

use crate::real::libc_symbol;
use libc::{c_char, c_int, c_long, c_void};
use sanshim_core::switch::bring_back::expect_unhooked_calls;
use sanshim_core::sys::errno;

libc_symbol!(DLOPEN = dlopen hooked by dlopen
    as unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void);
libc_symbol!(DLMOPEN = dlmopen hooked by dlmopen
    as unsafe extern "C-unwind" fn(c_long, *const c_char, c_int) -> *mut c_void);

/// The namespace of the program.
const LM_ID_BASE: c_long = 0;

/// RTLD_NOLOAD: it is loaded, and bound already.
fn binds_past_us(flags: c_int) -> bool {
    flags & libc::RTLD_DEEPBIND != 0 && flags & libc::RTLD_NOLOAD == 0
}

/// Gives libc's own dlopen.
extern "C" fn before_dlopen(flags: c_int) -> *mut c_void {
    if binds_past_us(flags) {
        errno::kept(expect_unhooked_calls);
    }
    DLOPEN.address()
}

/// Gives libc's own dlmopen.
extern "C" fn before_dlmopen(namespace: c_long, flags: c_int) -> *mut c_void {
    if namespace != LM_ID_BASE || binds_past_us(flags) {
        errno::kept(expect_unhooked_calls);
    }
    DLMOPEN.address()
}

/// Jumps to libc's, which looks for the library where the RUNPATH of its caller says, and knows that by the return address.
///
/// # Safety
/// As dlopen.
#[cfg(target_arch = "x86_64")]
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C-unwind" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov edi, esi",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        before = sym before_dlopen,
    )
}

/// As [`dlopen`].
///
/// # Safety
/// As dlmopen.
#[cfg(target_arch = "x86_64")]
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C-unwind" fn dlmopen(
    namespace: c_long,
    file: *const c_char,
    flags: c_int,
) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov esi, edx",
        "call {before}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        before = sym before_dlmopen,
    )
}
