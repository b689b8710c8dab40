//! Work with a descriptor table of one's own.

use super::process::SignalsHeld;
use super::{beyond, call, file, hidden, Fd};
use std::ffi::{c_int, c_void};

const STACK: usize = 256 << 10;

/// What the child does.
struct Work<'a>(&'a mut dyn FnMut());

extern "C" fn run(work: *mut c_void) -> c_int {
    // SAFETY: the parent waits, and so its `Work` is there.
    unsafe { ((*work.cast::<Work>()).0)() };
    0
}

/// Runs `work` in a child that shares this process's memory and has a copy of its descriptors: what it opens and
/// closes is opened and closed for it alone. The calling thread waits as in vfork, with all signals held back;
/// the program hears nothing of the child. False if there can be none.
pub fn with_own_descriptors(work: &mut dyn FnMut()) -> bool {
    let _signals = SignalsHeld::new();
    let Ok(stack) = file::map_private(STACK) else { return false };
    let mut work = Work(work);
    // No signal tells of its end, so the program's own waits do not find it.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    // SAFETY: a stack of that size, which grows down and is used until the child has ended; this thread
    // goes on only then.
    let child = unsafe { libc::clone(run, stack.add(STACK).cast(), flags, (&raw mut work).cast()) };
    if child > 0 {
        let _ = call!(wait4, child, 0, libc::__WALL, 0);
    }
    // SAFETY: whoever used it has ended.
    unsafe { file::unmap(stack, STACK) };
    child > 0
}

/// In such a child: makes room for so many descriptors, as far as its limit goes, by closing the program's,
/// `kept` excepted. Hidden ones stay: they are known by their numbers.
pub fn make_room(count: usize, kept: Fd) {
    raise_limit();
    let mut room = 0;
    let mut fd = 0;
    while room < count && fd < Fd::from(u16::MAX) {
        if fd != kept && !hidden::is_hidden(fd) {
            file::close(fd);
            room += 1;
        }
        fd += 1;
    }
}

/// Limits are a process's own.
fn raise_limit() {
    if let Some(limit) = beyond::limits(None) {
        beyond::limits(Some(&libc::rlimit64 { rlim_cur: limit.rlim_max, ..limit }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_closes_stays_open() {
        let fd = file::eventfd(0).unwrap();
        let (mut seen, mut after) = (Ok(()), Ok(()));
        assert!(with_own_descriptors(&mut || {
            seen = file::check_open(fd);
            file::close(fd);
            after = file::check_open(fd);
        }));
        assert!(seen.is_ok() && after.is_err());
        assert!(file::check_open(fd).is_ok());
        file::close(fd);
    }

    #[test]
    fn it_makes_room_and_leaves_what_is_asked_for() {
        let (kept, other) = (file::eventfd(0).unwrap(), file::eventfd(0).unwrap());
        let mut seen = [Ok(()), Ok(())];
        assert!(with_own_descriptors(&mut || {
            make_room(kept.max(other) as usize + 1, kept);
            seen = [kept, other].map(file::check_open);
        }));
        assert!(seen[0].is_ok() && seen[1].is_err());
        file::close(kept);
        file::close(other);
    }
}
