//! `libsanshim.so`: hooks over libc's socket calls.
//!
//! Every hook is thin. It asks the core's switch whether the descriptor is its business. If not, it calls libc's own
//! function with the program's own arguments. The hooks decide nothing, and keep no state.
//!
//! The hooks are `extern "C-unwind"`, because pthread_cancel unwinds through those that sleep.

#![allow(clippy::missing_safety_doc, reason = "the contracts are libc's own")]

mod hooks;
mod real;
mod start;

/// Tells in the file which library this is, for a program that has not loaded it, such as `sanctl`.
#[used]
#[link_section = ".sanshim"]
static LABEL: [u8; sanshim_core::label::SIZE] = sanshim_core::label::own();

/// Our own allocations never enter the program's malloc, because a signal handler may have interrupted it.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
