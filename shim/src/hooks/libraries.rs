//! Libraries that find libc's functions before ours: what dlopen loads with RTLD_DEEPBIND, as PHP loads its extensions.
//! They may wait for, read or write connections that the program gives them past the hooks, so all are on TCP from then on.

use crate::real::libc_symbol;
use libc::{c_char, c_int, c_void};
use sanshim_core::switch::bring_back::expect_unhooked_calls;
use sanshim_core::sys::errno;

libc_symbol!(DLOPEN = dlopen);

/// Gives libc's own dlopen.
extern "C" fn before_loading(flags: c_int) -> *mut c_void {
    // RTLD_NOLOAD: it is loaded, and bound already.
    if flags & libc::RTLD_DEEPBIND != 0 && flags & libc::RTLD_NOLOAD == 0 {
        errno::kept(expect_unhooked_calls);
    }
    DLOPEN.address()
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
        before = sym before_loading,
    )
}
