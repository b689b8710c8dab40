//! Clocks.

use super::call;

/// Nanoseconds of the monotonic clock. Reads the vDSO, so it makes no system call.
#[inline]
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec; clock_gettime is not hooked.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Sleeps. Returns early on a signal.
pub fn sleep(nanoseconds: u64) {
    let t = timespec(nanoseconds);
    let _ = call!(nanosleep, &t as *const _ as usize, 0);
}

/// Nanoseconds as the kernel takes them.
pub fn timespec(nanoseconds: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    }
}

/// A counter of clock ticks, some 2 to 4 per nanosecond. A cheap way to tell that time has passed.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the counter.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        now() * 3
    }
}
