//! Waiting where the kernel refuses poll. poll takes no more descriptors than RLIMIT_NOFILE says (EINVAL), and none at
//! all where a program sets that to 0. The kernel limits select by nothing. And a wait that gets no memory becomes a
//! short nap. So no wait of the library's own fails for what this process lacks.

use super::{file, net, Errno, Fd, Result};
use smallvec::{smallvec, SmallVec};

/// How long (ns) a thread naps that can wait for nothing in particular.
const NAP: u64 = 1_000_000;

/// Words of all three sets that take no memory beside the stack: for 512 descriptors.
const FEW: usize = 24;

/// The three sets of select, as words of 64 descriptors each. Empty, they ask for nothing, and only time passes.
pub(super) struct Sets {
    words: SmallVec<[u64; FEW]>,
}

const READ: usize = 0;
const WRITE: usize = 1;
const EXCEPT: usize = 2;

/// What poll may ask for, and the set that has it.
const ASKED: [(i16, usize); 3] = [
    (libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP, READ),
    (libc::POLLOUT | libc::POLLWRNORM, WRITE),
    (libc::POLLPRI, EXCEPT),
];

impl Sets {
    fn none() -> Sets {
        Sets { words: SmallVec::new() }
    }

    fn of(fds: &[libc::pollfd]) -> Sets {
        let most = fds.iter().map(|one| one.fd).max().unwrap_or(-1);
        let each = (most + 1).max(0).unsigned_abs().div_ceil(64) as usize;
        let mut sets = Sets { words: smallvec![0; 3 * each] };
        for one in fds.iter().filter(|one| one.fd >= 0) {
            for (_, set) in ASKED.iter().filter(|(events, _)| one.events & events != 0) {
                sets.words[set * each + one.fd as usize / 64] |= 1 << (one.fd % 64);
            }
        }
        sets
    }

    fn has(&self, set: usize, fd: Fd) -> bool {
        let each = self.words.len() / 3;
        self.words[set * each + fd as usize / 64] >> (fd % 64) & 1 != 0
    }

    /// How many descriptors select looks at, and where the three sets are; null for sets of none.
    pub(super) fn for_kernel(&mut self) -> (i32, [*mut u64; 3]) {
        let each = self.words.len() / 3;
        if each == 0 {
            return (0, [std::ptr::null_mut(); 3]);
        }
        let mut at = self.words.chunks_exact_mut(each).map(<[u64]>::as_mut_ptr);
        let sets = [(); 3].map(|()| at.next().unwrap_or(std::ptr::null_mut()));
        (each as i32 * 64, sets)
    }
}

/// What poll said, or what `select` says in its place where the kernel refused poll. `select` waits for what is in the sets,
/// for so many nanoseconds at most.
#[inline]
pub(super) fn or_select(
    polled: Result<usize>,
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    select: impl FnMut(&mut Sets, Option<u64>) -> Result<usize>,
) -> Result<usize> {
    match polled {
        Err(Errno(libc::EINVAL | libc::ENOMEM)) => by_select(fds, timeout, select),
        polled => polled,
    }
}

#[cold]
fn by_select(
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    mut select: impl FnMut(&mut Sets, Option<u64>) -> Result<usize>,
) -> Result<usize> {
    let nap = Some(timeout.unwrap_or(NAP).min(NAP));
    let not_open = note_not_open(fds);
    if not_open > 0 {
        return Ok(not_open);
    }
    let mut sets = Sets::of(fds);
    let found = match select(&mut sets, timeout) {
        // One was closed meanwhile.
        Err(Errno(libc::EBADF)) => return Ok(note_not_open(fds)),
        Err(Errno(libc::EINVAL | libc::ENOMEM)) => return select(&mut Sets::none(), nap),
        found => found?,
    };
    if found == 0 {
        return Ok(0);
    }
    for one in fds.iter_mut().filter(|one| one.fd >= 0) {
        one.revents = events_of(one, &sets);
    }
    let told = fds.iter().filter(|one| one.revents != 0).count();
    if told == 0 {
        // The event that ended the wait is none that was asked for, and is still there.
        select(&mut Sets::none(), nap)?;
    }
    Ok(told)
}

/// Tells of those that are not open; how many.
fn note_not_open(fds: &mut [libc::pollfd]) -> usize {
    let mut count = 0;
    for one in fds {
        let is_open = one.fd < 0 || file::check_open(one.fd).is_ok();
        one.revents = if is_open { 0 } else { libc::POLLNVAL };
        count += usize::from(!is_open);
    }
    count
}

/// poll's answer for a descriptor of which select told what the sets have.
fn events_of(one: &libc::pollfd, sets: &Sets) -> i16 {
    let told = ASKED.iter().filter(|(_, set)| sets.has(*set, one.fd));
    let told = told.fold(0, |all, (events, _)| all | events) & one.events & !libc::POLLRDHUP;
    // A socket of which there is nothing to tell has not ended either.
    let is_any = (READ..=EXCEPT).any(|set| sets.has(set, one.fd));
    told | if is_any { net::end_as_polled(one.fd) & (one.events | ENDS) } else { 0 }
}

/// What poll tells without being asked.
const ENDS: i16 = libc::POLLHUP | libc::POLLERR;

#[cfg(test)]
mod tests {
    use crate::sys::poll;
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// What select tells of a descriptor in poll's place, without waiting.
    fn by_select(fd: i32, events: i16) -> (usize, i16) {
        let mut one = [libc::pollfd { fd, events, revents: 0 }];
        let n = super::by_select(&mut one, Some(0), |sets, t| poll::select(sets, t, None)).unwrap();
        (n, one[0].revents)
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    /// Until poll tells these events of the descriptor.
    fn await_events(fd: i32, events: i16) {
        let mut one = [libc::pollfd { fd, events, revents: 0 }];
        assert_eq!(poll::poll(&mut one, Some(10_000_000_000), None), Ok(1));
    }

    const ALL: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;

    #[test]
    fn select_tells_what_poll_tells() {
        let (mut a, b) = pair();
        let (a_fd, b_fd) = (a.as_raw_fd(), b.as_raw_fd());
        let same = |what: &str| {
            for events in [ALL, libc::POLLIN, libc::POLLOUT, libc::POLLRDHUP] {
                let polled = poll::poll_one(b_fd, events).unwrap();
                let (n, told) = by_select(b_fd, events);
                // That a closed connection has an error to ask for, it cannot tell from one that has none.
                let told = if polled & libc::POLLHUP != 0 { told & !libc::POLLERR } else { told };
                assert_eq!((n, told), (usize::from(polled != 0), polled), "{what}: {events:#x}");
            }
        };
        same("nothing to read");
        a.write_all(b"x").unwrap();
        await_events(b_fd, libc::POLLIN);
        same("a byte");
        a.shutdown(Shutdown::Write).unwrap();
        await_events(b_fd, libc::POLLRDHUP);
        same("the peer's end");
        assert_eq!(by_select(a_fd, ALL).1, poll::poll_one(a_fd, ALL).unwrap());
        b.shutdown(Shutdown::Write).unwrap();
        await_events(b_fd, libc::POLLHUP);
        same("both ends");
    }

    #[test]
    fn a_reset_is_told() {
        let (a, mut b) = pair();
        b.write_all(b"x").unwrap();
        await_events(a.as_raw_fd(), libc::POLLIN);
        // Closed with a byte unread.
        drop(a);
        await_events(b.as_raw_fd(), libc::POLLHUP);
        let polled = poll::poll_one(b.as_raw_fd(), ALL).unwrap();
        assert_eq!(by_select(b.as_raw_fd(), ALL), (1, polled));
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_told() {
        // Beyond all that a process has.
        let fd = 1_000_000;
        assert_eq!(by_select(fd, libc::POLLIN), (1, libc::POLLNVAL));
        assert_eq!(by_select(-1, libc::POLLIN), (0, 0));
    }
}
