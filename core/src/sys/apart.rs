//! A process apart, for work that must not hold up the program and must outlive it: what a close has left to send.

use super::process::SignalsHeld;
use super::{call, file, process, thread, Errno, Fd, Result};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};

/// Most of a process and its forks at a time. Each lasts as long as some peer wants, and a peer may have any number of
/// connections.
const MOST: usize = 128;

/// Runs `work` in a process that no process waits for, and that keeps no descriptor but `keep`. It is no child of this
/// one, so no wait of the program's tells of it, unless the program is PID 1 or adopts orphans. It holds all signals
/// back. Its memory is a copy.
///
/// `work` must not allocate, and take no lock of this process's alone: another thread may have held it.
///
/// # Errors
///
/// The kernel's where there is no room for another process; EAGAIN where there are as many as may be.
pub(crate) fn run(keep: Fd, work: impl FnOnce()) -> Result<()> {
    let place = claim()?;
    // No handler of the program runs in a copy.
    let _held = SignalsHeld::new();
    match clone().inspect_err(|_| place.store(0, SeqCst))? {
        0 => {
            // The caller may count on its descriptors being the only ones when it goes on.
            close_all_but(keep);
            // Its child does the work: once this process is over, the child belongs to nobody here.
            match clone() {
                Ok(0) => {
                    thread::forget_tid();
                    work();
                    place.store(0, SeqCst);
                }
                // If that process is over already, a look finds that its number belongs to nobody.
                Ok(worker) => place.store(worker as u32, SeqCst),
                Err(_) => place.store(0, SeqCst),
            }
            exit()
        }
        between => {
            let all = libc::__WALL;
            while call!(wait4, between, 0, all, 0) == Err(super::Errno(libc::EINTR)) {}
            Ok(())
        }
    }
}

/// A place for the number of one more, in memory that all of them have. Until that one has a number this process's stands there.
fn claim() -> Result<&'static AtomicU32> {
    let all = places()?;
    let own = process::pid();
    let take = |place: &AtomicU32, of: u32| place.compare_exchange(of, own, SeqCst, SeqCst).is_ok();
    let is_over = |pid: u32| pid != 0 && pid != own && !process::lives(pid);
    let free = all.iter().find(|place| take(place, 0));
    // One that was killed left its number.
    let left = || {
        all.iter().find(|place| {
            let pid = place.load(SeqCst);
            is_over(pid) && take(place, pid)
        })
    };
    free.or_else(left).ok_or(Errno(libc::EAGAIN))
}

fn places() -> Result<&'static [AtomicU32; MOST]> {
    static PLACES: AtomicPtr<[AtomicU32; MOST]> = AtomicPtr::new(null_mut());
    let mut places = PLACES.load(SeqCst);
    if places.is_null() {
        let size = size_of::<[AtomicU32; MOST]>();
        let made: *mut [AtomicU32; MOST] = file::map_shared(None, size)?.cast();
        places = match PLACES.compare_exchange(null_mut(), made, SeqCst, SeqCst) {
            Ok(_) => made,
            Err(others) => {
                // SAFETY: no other thread has seen it.
                unsafe { file::unmap(made.cast(), size) };
                others
            }
        };
    }
    // SAFETY: zeros, of which this type may be, in a mapping that stays.
    Ok(unsafe { &*places })
}

/// Makes a copy of this process with this thread alone, whose end raises no signal. Zero in the copy. In this process,
/// the copy's number.
fn clone() -> Result<usize> {
    call!(clone, 0, 0, 0, 0, 0)
}

/// A pipe of the program's would stay open through the copy.
fn close_all_but(keep: Fd) {
    if keep > 0 {
        let _ = call!(close_range, 0, keep - 1, 0);
    }
    let _ = call!(close_range, keep + 1, u32::MAX, 0);
}

fn exit() -> ! {
    loop {
        let _ = call!(exit_group, 0);
    }
}

/// Held by a test that makes processes apart, since these are counted. A test with a socket that lingers holds this too:
/// a copy of the process that another test makes meanwhile would wait for that socket.
#[cfg(test)]
pub(super) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{file, pipe};

    #[test]
    fn it_works_apart_and_is_nobodys_child() {
        let _alone = ALONE.lock();
        let (read_end, write_end) = pipe::pipe().unwrap();
        run(write_end, || {
            let byte = [7u8];
            let _ = call!(write, write_end, byte.as_ptr() as usize, 1);
        })
        .unwrap();
        file::close(write_end);
        let mut byte = 0u8;
        assert_eq!(file::read(read_end, &mut byte, 1), Ok(1));
        assert_eq!(byte, 7);
        // It is gone, and kept nothing open.
        assert_eq!(file::read(read_end, &mut byte, 1), Ok(0));
        file::close(read_end);
    }

    #[test]
    fn peers_make_no_more_of_them_than_a_limit() {
        let _alone = ALONE.lock();
        let (told, tells) = pipe::pipe().unwrap();
        // Each process says its number, and lasts until the test ends it.
        let start = || {
            run(tells, || {
                let pid = process::pid().to_ne_bytes();
                let _ = call!(write, tells, pid.as_ptr() as usize, pid.len());
                loop {
                    crate::sys::time::sleep(1_000_000_000);
                }
            })
        };
        let number = || {
            let mut pid = [0u8; 4];
            assert_eq!(file::read(told, pid.as_mut_ptr(), 4), Ok(4));
            u32::from_ne_bytes(pid) as i32
        };
        for _ in 0..MOST {
            start().unwrap();
        }
        let all: Vec<i32> = (0..MOST).map(|_| number()).collect();
        assert_eq!(start(), Err(Errno(libc::EAGAIN)));
        let end = |pid: i32| {
            // SAFETY: a process that this test made.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            while process::lives(pid as u32) {
                crate::sys::time::sleep(1_000_000);
            }
        };
        end(all[7]);
        start().unwrap();
        end(number());
        all.into_iter().filter(|pid| process::lives(*pid as u32)).for_each(end);
        [told, tells].into_iter().for_each(file::close);
    }
}
