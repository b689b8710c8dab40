//! select, by poll.

use crate::switch::outcome::Outcome;
use crate::switch::readiness::poll::{poll, Descriptors};
use crate::switch::setup;
use crate::switch::socket::table;
use crate::sys::{Errno, Fd, Result};
use smallvec::SmallVec;

/// Most descriptors of a call.
const MOST: i32 = 1 << 20;
/// What the three sets ask poll for,
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// and what of its answer counts for each.
const COUNTS: [i16; 3] = [
    libc::POLLIN | libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP,
    libc::POLLOUT | libc::POLLERR,
    libc::POLLPRI,
];

/// select in all its forms. The sets are the kernel's bit arrays of `nfds` bits, or null; `timeout` is asked for only
/// if one of the descriptors is ours.
///
/// # Safety
/// The sets are null or hold `nfds` bits; `mask` is null or a valid signal set.
pub unsafe fn select(
    nfds: i32,
    sets: [*mut u64; 3],
    timeout: impl FnOnce() -> Result<Option<u64>>,
    mask: *const libc::sigset_t,
) -> Outcome {
    if !(0..=MOST).contains(&nfds) {
        return Outcome::Pass;
    }
    // SAFETY: the caller's promise.
    let sets = unsafe { BitSets::new(nfds, sets) };
    let mut fds = Descriptors::new();
    if !sets.find_descriptors(&mut fds) {
        return Outcome::Pass;
    }
    let timeout = match timeout() {
        Ok(timeout) => timeout,
        Err(e) => return Outcome::Done(Err(e)),
    };
    // SAFETY: the caller's promise.
    match unsafe { poll(&mut fds, timeout, mask) } {
        Outcome::Pass => Outcome::Pass,
        Outcome::Done(polled) => Outcome::Done(polled.and_then(|_| sets.report(&fds))),
    }
}

/// The program's sets for reading, writing and urgent data: each null, or an array with a bit for every descriptor
/// below `nfds`.
struct BitSets {
    nfds: i32,
    sets: [*mut u64; 3],
}

impl BitSets {
    /// # Safety
    /// The sets are null or hold `nfds` bits, as long as the result is used.
    unsafe fn new(nfds: i32, sets: [*mut u64; 3]) -> Self {
        Self { nfds, sets }
    }

    #[inline]
    fn words(&self) -> usize {
        (self.nfds as usize).div_ceil(64)
    }

    #[inline]
    fn bits(&self, set: usize, word: usize) -> u64 {
        match self.sets[set].is_null() {
            true => 0,
            // SAFETY: as `new` was promised.
            false => unsafe { self.sets[set].add(word).read_unaligned() },
        }
    }

    /// The descriptors in any of them; true if one is ours.
    #[inline]
    fn find_descriptors(&self, fds: &mut Descriptors) -> bool {
        let mut ours = false;
        for word in 0..self.words() {
            let mut any = (0..3).fold(0, |any, set| any | self.bits(set, word));
            while any != 0 {
                let bit = any.trailing_zeros() as usize;
                any &= any - 1;
                let fd = (word * 64 + bit) as Fd;
                if fd >= self.nfds {
                    break;
                }
                let mut events = 0;
                for (set, asked) in ASKED.iter().enumerate() {
                    if self.bits(set, word) >> bit & 1 != 0 {
                        events |= asked;
                    }
                }
                setup::serving(fd);
                ours |= table::connected(fd).is_some()
                    || table::set(fd).is_some()
                    || setup::connecting(fd).is_some();
                fds.push(libc::pollfd { fd, events, revents: 0 });
            }
        }
        ours
    }

    /// Puts what poll found into the program's sets; how many bits.
    #[inline]
    fn report(&self, fds: &[libc::pollfd]) -> Result<usize> {
        if fds.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
            return Err(Errno(libc::EBADF));
        }
        let mut found = [(); 3].map(|()| SmallVec::<[u64; 16]>::new());
        for set in &mut found {
            set.resize(self.words(), 0u64);
        }
        let mut count = 0;
        for one in fds {
            for set in 0..3 {
                if one.events & ASKED[set] != 0 && one.revents & COUNTS[set] != 0 {
                    found[set][one.fd as usize / 64] |= 1 << (one.fd as usize % 64);
                    count += 1;
                }
            }
        }
        for (to, bits) in self.sets.iter().zip(&found).filter(|(to, _)| !to.is_null()) {
            for (word, value) in bits.iter().enumerate() {
                // The last word may reach beyond the program's array only by bits it rounds up to as
                // well: fd_set is an array of longs.
                // SAFETY: as `new` was promised.
                unsafe { to.add(word).write_unaligned(*value) };
            }
        }
        Ok(count)
    }
}
