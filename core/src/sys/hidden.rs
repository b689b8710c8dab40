//! Descriptors of our own in the program's table. They have high numbers, and are close-on-exec. The library notes them
//! here, so that they survive a program that closes all descriptors it does not know.

use super::{file, net, process, Fd, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// As many as the table of sockets has.
const LIMIT: usize = 1 << 20;
/// A limit of descriptors up to here is one that a program may come near to.
const MOST_TIGHT: u64 = 1 << 16;
static KEPT: [AtomicU64; LIMIT / 64] = [const { AtomicU64::new(0) }; LIMIT / 64];

fn bit(fd: Fd) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(fd).ok().filter(|at| *at < LIMIT)?;
    Some((&KEPT[at / 64], 1 << (at % 64)))
}

/// Moves a descriptor out of the program's way and remembers it.
pub fn keep(fd: Fd) -> Fd {
    let fd = file::move_high(fd);
    note(fd);
    fd
}

/// The lowest number of those that are [kept aside](keep_aside): the program's own limit. `None` where the hard limit is the same, or there is room for
/// all.
pub(crate) fn aside() -> Option<Fd> {
    let (soft, hard) = process::descriptor_limit();
    (soft < hard && soft <= MOST_TIGHT).then_some((soft as Fd).max(file::FLOOR))
}

/// As [`keep`], for what there are many of: beyond the numbers that the program may use, if there are such.
pub(crate) fn keep_aside(fd: Fd) -> Fd {
    let Some(floor) = aside() else { return keep(fd) };
    match process::at_hard_limit(|| file::duplicate_from(fd, floor)) {
        Ok(high) => {
            file::close(fd);
            note(high);
            high
        }
        Err(_) => keep(fd),
    }
}

/// Makes room in the process's table of descriptors for ours. Before it has threads: for one that has, the kernel waits
/// until each processor has passed by, 15 ms and on a busy machine a second, in the middle of some transfer.
pub(crate) fn make_room() {
    if let Ok(fd) = file::eventfd(0) {
        let high = match aside() {
            Some(floor) => process::at_hard_limit(|| file::duplicate_from(fd, floor)),
            None => file::duplicate_high(fd),
        };
        if let Ok(high) = high {
            file::close(high);
        }
        file::close(fd);
    }
}

/// Remembers a descriptor that is ours, and already has a high number.
pub fn note(fd: Fd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// The first of ours from `first` to `last`.
pub fn next(first: Fd, last: Fd) -> Option<Fd> {
    let (first, end) = (first.max(0) as usize, (last.max(-1) + 1).min(LIMIT as Fd) as usize);
    let mut at = first;
    while at < end {
        let word = KEPT[at / 64].load(Ordering::Relaxed) >> (at % 64);
        if word != 0 {
            let found = at + word.trailing_zeros() as usize;
            return (found < end).then_some(found as Fd);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// True if `fd` is so high that it may be one of ours, now or later.
pub fn may_be(fd: Fd) -> bool {
    fd >= file::FLOOR || is_hidden(fd)
}

/// True if `fd` is one of ours.
#[inline]
pub fn is_hidden(fd: Fd) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// False once the program has taken over the number of one of ours, as far as that is known.
#[inline]
pub(crate) fn is_kept(fd: Fd) -> bool {
    is_hidden(fd) || bit(fd).is_none()
}

/// One of ours, for a system call. -1, with which each fails, once the program has taken its number over.
#[inline]
pub(crate) fn kept(fd: Fd) -> Fd {
    if is_kept(fd) {
        fd
    } else {
        -1
    }
}

/// The program took the number over by dup2, so it is not ours any more.
pub fn forget(fd: Fd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Closes one of ours, unless the program took its number over.
pub fn close(fd: Fd) {
    if is_kept(fd) {
        forget(fd);
        file::close(fd);
    }
}

/// A socket of ours that is made once and used again, for questions that come up with every connection. One thread uses
/// it at a time, because a thread must not get the answer to another's question. If it is in use, or in another network
/// namespace, the caller makes another one.
pub(crate) struct Spare {
    /// Descriptor plus one, and the process that made it. Zero if there is none, or if it is in use.
    word: AtomicU64,
    /// Cookie of its network namespace. Belongs to the thread that took the word.
    namespace: AtomicU64,
    make: fn() -> Result<Fd>,
}

impl Spare {
    /// `make` makes the socket.
    pub(crate) const fn new(make: fn() -> Result<Fd>) -> Self {
        Self { word: AtomicU64::new(0), namespace: AtomicU64::new(0), make }
    }

    /// Calls `ask` with a socket in the network namespace that the socket `like` is in.
    pub(crate) fn with<T>(&self, like: Fd, ask: impl FnOnce(Fd) -> T) -> Result<T> {
        let pid = process::pid();
        let namespace = net::namespace(like);
        let word = self.word.load(Ordering::Relaxed);
        let (owner, fd) = Self::split(word);
        // A vfork child notes nothing: that would be a note in its parent's memory.
        let foreign = process::is_borrowed() || (word != 0 && owner != pid);
        let taken = word != 0
            && !foreign
            && self.word.compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken && is_hidden(fd) {
            if namespace == Ok(self.namespace.load(Ordering::Relaxed)) {
                let answer = ask(fd);
                self.put_back(word);
                return Ok(answer);
            }
            close(fd);
        }
        let fd = (self.make)()?;
        let answer = ask(fd);
        let Some(namespace) = namespace.ok().filter(|_| !foreign) else {
            file::close(fd);
            return Ok(answer);
        };
        let high = file::move_high(fd);
        if high == fd {
            file::close(fd);
        } else if high >= 0 {
            note(high);
            // Another thread may have put one there by now. A thread that takes that checks the namespace.
            self.namespace.store(namespace, Ordering::Relaxed);
            self.put_back(u64::from(pid) << 32 | (high as u64 + 1));
        }
        Ok(answer)
    }

    fn split(word: u64) -> (u32, Fd) {
        ((word >> 32) as u32, (word as u32).wrapping_sub(1) as Fd)
    }

    /// Puts the socket back, or closes it if another thread has put one there.
    fn put_back(&self, word: u64) {
        if self.word.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed).is_err() {
            close(Self::split(word).1);
        }
    }

    /// In a fork child, which must not use its parent's socket.
    pub(crate) fn forget(&self) {
        let word = self.word.swap(0, Ordering::Relaxed);
        if word != 0 {
            close(Self::split(word).1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::packet;

    /// The next file that the program opens gets the number.
    #[test]
    fn a_number_that_the_program_has_closed_is_not_ours() {
        const CLOSED: Fd = 60_000;
        assert_eq!(keep(CLOSED), -1);
        assert!(!is_hidden(CLOSED));
    }

    #[test]
    fn ours_are_found_among_all() {
        const OURS: [Fd; 3] = [LIMIT as Fd - 1, 700_064, 700_063];
        OURS.into_iter().for_each(note);
        assert_eq!(next(700_000, Fd::MAX - 1), Some(700_063));
        assert_eq!(next(700_064, 700_064), Some(700_064));
        assert_eq!(next(700_065, LIMIT as Fd), Some(LIMIT as Fd - 1));
        assert_eq!(next(700_000, 700_062), None);
        assert_eq!(next(Fd::MAX - 1, Fd::MAX - 1), None);
        OURS.into_iter().for_each(forget);
    }

    #[test]
    fn a_spare_socket_serves_one_question_at_a_time_and_again() {
        static SPARE: Spare = Spare::new(packet::datagrams);
        let like = packet::datagrams().unwrap();
        let ask = || SPARE.with(like, |fd| fd).unwrap();
        let first_answer = ask();
        let kept = ask();
        assert!(is_hidden(kept) && kept != first_answer);
        let inner = SPARE.with(like, |outer| (outer, ask())).unwrap();
        assert_eq!(inner.0, kept);
        assert_ne!(inner.1, kept);
        let now = ask();
        // The program takes the number. The library asks and closes nothing behind it any more.
        forget(now);
        assert_ne!(ask(), now);
        assert!(file::check_open(now).is_ok());
        SPARE.forget();
        file::close(now);
        file::close(like);
    }

    #[test]
    fn a_spare_socket_of_another_process_is_left_alone() {
        static SPARE: Spare = Spare::new(packet::datagrams);
        let like = packet::datagrams().unwrap();
        SPARE.with(like, |_| ()).unwrap();
        let kept = SPARE.word.load(Ordering::Relaxed);
        let parents = kept ^ (1 << 32);
        SPARE.word.store(parents, Ordering::Relaxed);
        assert_ne!(SPARE.with(like, |fd| fd).unwrap(), Spare::split(kept).1);
        assert_eq!(SPARE.word.load(Ordering::Relaxed), parents);
        SPARE.forget();
        file::close(like);
    }
}
