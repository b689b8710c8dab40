//! A word that each thread has for itself, for what every sleep needs. A `thread_local!` of a library costs a call into
//! the dynamic linker. A library that is loaded with the program, as libsanshim.so is, may have its words at a distance
//! from the thread pointer that is known from then on. A library that is loaded later may not, and must not use this
//! module. It is for x86-64.

use std::arch::{asm, global_asm};
use std::cell::Cell;

global_asm!(
    ".pushsection .tbss.sanshim_thread_word, \"awT\", @nobits",
    ".balign 8",
    ".globl sanshim_thread_word",
    ".hidden sanshim_thread_word",
    ".type sanshim_thread_word, @object",
    ".size sanshim_thread_word, 8",
    "sanshim_thread_word:",
    ".zero 8",
    ".popsection",
);

/// The calling thread's. Null at first.
#[inline(always)]
pub(super) fn get() -> &'static Cell<*const ()> {
    let at: *const Cell<*const ()>;
    // SAFETY: the thread's own, for as long as it runs; the reference cannot leave it.
    unsafe {
        asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + sanshim_thread_word@GOTTPOFF]",
            at = out(reg) at,
            options(pure, readonly, nostack),
        );
        &*at
    }
}
