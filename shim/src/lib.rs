//! `libsanshim.so`: hooks over libc's socket calls.
//!
//! Every hook is thin: it asks the core's switch whether the descriptor is its business, and
//! otherwise calls libc's own function with the program's own arguments. No decision is made and
//! no state is kept here.
//!
//! The hooks are `extern "C-unwind"`, because pthread_cancel unwinds through those that sleep.

#![allow(clippy::missing_safety_doc, reason = "the contracts are libc's own")]

mod hooks;
mod real;
mod start;

/// Which library this is, for who has not loaded it.
#[used]
#[link_section = ".sanshim"]
static LABEL: [u8; sanshim_core::label::SIZE] = sanshim_core::label::own();

/// Allocations of ours never enter the program's malloc: a signal handler may have interrupted it.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
