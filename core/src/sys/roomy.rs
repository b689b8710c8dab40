//! Runs what takes much of a stack on one of its own: the thread of the program may have the smallest that there is.

use super::process::SignalsHeld;
use super::{file, Result};
use std::arch::naked_asm;
use std::ffi::c_void;

/// Bytes of such a stack, of which only those take memory that are touched.
const SIZE: usize = 256 << 10;

/// Runs it. No signal of the program is handled meanwhile. A panic ends the process.
///
/// # Errors
/// ENOMEM, and it is not run.
pub(crate) fn run<T>(what: impl FnOnce() -> T) -> Result<T> {
    /// What to run, and then what came of it.
    struct Call<F, T>(Option<F>, Option<T>);

    /// Runs a [`Call`].
    unsafe extern "C" fn enter<T, F: FnOnce() -> T>(call: *mut c_void) {
        // SAFETY: of the call below, which waits.
        let call = unsafe { &mut *call.cast::<Call<F, T>>() };
        call.1 = call.0.take().map(|what| what());
    }

    fn entry<T, F: FnOnce() -> T>(_: &Call<F, T>) -> unsafe extern "C" fn(*mut c_void) {
        enter::<T, F>
    }

    let mut call = Call(Some(what), None);
    let stack = file::map_private(SIZE)?;
    let held = SignalsHeld::new();
    let function = entry(&call);
    // SAFETY: the mapping is this call's alone, its end is aligned, and `call` is what the function takes.
    unsafe { call_on(stack.add(SIZE), function, (&raw mut call).cast()) };
    drop(held);
    // SAFETY: no code uses it any more.
    unsafe { file::unmap(stack, SIZE) };
    call.1.ok_or(super::Errno(libc::ENOMEM))
}

/// Calls a function with the argument, on the stack that ends there.
///
/// # Safety
/// The stack is unused, has room for the function, and is aligned to 16 bytes. The function's own contract is kept.
#[unsafe(naked)]
unsafe extern "C" fn call_on(
    stack: *mut u8,
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        ".cfi_def_cfa_register rsp",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_more_than_the_threads_stack_runs() {
        const MUCH: usize = SIZE / 2;
        let small = std::thread::Builder::new().stack_size(libc::PTHREAD_STACK_MIN);
        let thread = small.spawn(|| {
            let given = Box::new(7u8);
            run(move || {
                let much = std::hint::black_box([*given; MUCH]);
                much.iter().map(|byte| usize::from(*byte)).sum::<usize>()
            })
        });
        assert_eq!(thread.unwrap().join().unwrap().ok(), Some(7 * MUCH));
    }
}
