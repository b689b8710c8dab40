//! The C library's errno of the calling thread. A call that succeeds leaves it as it was, so what the library does for
//! itself must not show in it.
//!
//! Each call of the program looks at it, so on x86-64 the library finds it without another call: the C library is
//! loaded with the program, and its errno then lies at the same distance from each thread's pointer.

use std::ffi::c_int;

#[cfg(target_arch = "x86_64")]
mod place {
    use std::arch::{asm, global_asm};
    use std::ffi::c_int;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    // A static would be reached through a table of addresses, which is one more cache line.
    global_asm!(
        ".pushsection sanshim_words, \"aw\", @progbits",
        ".balign 8",
        ".globl sanshim_errno_distance",
        ".hidden sanshim_errno_distance",
        ".type sanshim_errno_distance, @object",
        ".size sanshim_errno_distance, 8",
        "sanshim_errno_distance:",
        ".zero 8",
        ".popsection",
    );

    /// The place of errno. Before [`prepare`] it is the thread pointer's own word, which nobody changes.
    #[inline(always)]
    pub(super) fn get() -> *mut c_int {
        let at: *mut c_int;
        // SAFETY: reads a word of ours, and the one in which each thread has its pointer.
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + sanshim_errno_distance]",
                "add {at}, qword ptr fs:[0]",
                at = out(reg) at,
                options(pure, readonly, nostack),
            );
        }
        at
    }

    pub(super) fn prepare() {
        extern "C" {
            #[link_name = "sanshim_errno_distance"]
            static DISTANCE: AtomicUsize;
        }
        let pointer: usize;
        // SAFETY: each thread has its pointer there, and errno is always there; the word is the one above.
        unsafe {
            asm!("mov {}, fs:[0]", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
            DISTANCE.store((libc::__errno_location() as usize).wrapping_sub(pointer), Relaxed);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod place {
    pub(super) fn get() -> *mut std::ffi::c_int {
        // SAFETY: errno is always there.
        unsafe { libc::__errno_location() }
    }

    pub(super) fn prepare() {}
}

/// From now on [`kept`] and [`kept_if`] keep it. Called at the start, before anything is done for the program.
pub fn prepare() {
    place::prepare();
}

/// errno.
pub fn get() -> c_int {
    // SAFETY: errno is always there.
    unsafe { *libc::__errno_location() }
}

/// Sets errno.
pub fn set(value: c_int) {
    // SAFETY: errno is always there.
    unsafe { *libc::__errno_location() = value }
}

/// Calls `run`. errno is as before if `succeeded` says so of its result. Otherwise it tells what failed.
#[inline(always)]
pub fn kept_if<T>(succeeded: impl FnOnce(&T) -> bool, run: impl FnOnce() -> T) -> T {
    let at = place::get();
    // SAFETY: the thread's own; `run` ends in the thread in which it began.
    let before = unsafe { at.read() };
    let result = run();
    if succeeded(&result) {
        // SAFETY: as above. This does not write what is right already, so that the cache line stays clean.
        unsafe {
            if at.read() != before {
                at.write(before);
            }
        }
    }
    result
}

/// Calls `run`, after which errno is as before.
#[inline]
pub fn kept<T>(run: impl FnOnce() -> T) -> T {
    kept_if(|_| true, run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_leaves_it_and_a_failure_tells_its_own() {
        prepare();
        std::thread::spawn(|| {
            set(7);
            kept(|| set(8));
            assert_eq!(get(), 7);
            assert!(kept_if(
                |ok| *ok,
                || {
                    set(8);
                    true
                }
            ));
            assert_eq!(get(), 7);
            assert!(!kept_if(
                |ok| *ok,
                || {
                    set(8);
                    false
                }
            ));
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(8));
        })
        .join()
        .unwrap();
    }
}
