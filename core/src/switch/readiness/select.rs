//! Serves select by poll.

use crate::switch::bit_sets::BitSets;
use crate::switch::outcome::Outcome;
use crate::switch::readiness::poll::{poll, Descriptors, PollCall};
use crate::switch::readiness::timeout::Timeout;
use crate::switch::socket::table;
use crate::sys::signal_mask::SignalMask;
use crate::sys::{Errno, Fd, Result};
use smallvec::SmallVec;

/// The event that each of the three sets asks poll for.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// The events of poll's answer that count for each set.
const COUNTS: [i16; 3] = [
    libc::POLLIN | libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP,
    libc::POLLOUT | libc::POLLERR,
    libc::POLLPRI,
];

/// Serves select in all its forms. It asks how long the call may wait, and with which signals, only if one of the
/// descriptors is the library's.
pub fn select<'a>(
    sets: &BitSets<'_>,
    how: impl FnOnce() -> Result<(Option<u64>, Option<SignalMask<'a>>)>,
) -> Outcome {
    // This comes before the array is made, which may allocate: a call without descriptors of the library's must not
    // allocate.
    if !each(sets).any(|(fd, _)| table::connected(fd).is_some() || table::set(fd).is_some()) {
        return Outcome::Pass;
    }
    let mut fds: Descriptors =
        each(sets).map(|(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
    let (timeout, mask) = match how() {
        Ok(how) => how,
        Err(e) => return Outcome::Done(Err(e)),
    };
    let mut clock = Timeout::new(timeout);
    loop {
        let polled = match poll(PollCall::Select, &mut fds, clock.left(), mask) {
            Outcome::Pass => return Outcome::Pass,
            Outcome::Done(Err(e)) => return Outcome::Done(Err(e)),
            Outcome::Done(Ok(polled)) => polled,
        };
        if fds.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
            return Outcome::Done(Err(Errno(libc::EBADF)));
        }
        if polled == 0 || fds.iter().any(|one| (0..3).any(|set| is_found(one, set))) {
            return Outcome::Done(Ok(report(sets, &fds)));
        }
        // A descriptor's end may count only for a set that the descriptor is not in. Such an end does not end select,
        // and would end poll at once again.
        fds.iter_mut().filter(|one| one.revents != 0).for_each(|one| one.fd = -1);
    }
}

/// True if the descriptor is in this one of the sets, and poll found an event that counts for the set.
fn is_found(one: &libc::pollfd, set: usize) -> bool {
    one.events & ASKED[set] != 0 && one.revents & COUNTS[set] != 0
}

/// Gives the descriptors in any of the sets, each with the events to ask poll for.
#[inline]
fn each<'a>(sets: &'a BitSets<'_>) -> impl Iterator<Item = (Fd, i16)> + 'a {
    let of_word = move |word| {
        let mut any = (0..3).fold(0, |any, set| any | sets.bits(set, word));
        std::iter::from_fn(move || {
            let bit = any.trailing_zeros() as usize;
            any &= any.checked_sub(1)?;
            let is_in = |(set, _): &(usize, &i16)| sets.bits(*set, word) >> bit & 1 != 0;
            let asked = ASKED.iter().enumerate().filter(is_in);
            Some(((word * 64 + bit) as Fd, asked.fold(0, |all, (_, events)| all | events)))
        })
    };
    (0..sets.words()).flat_map(of_word).take_while(|(fd, _)| *fd < sets.descriptors())
}

/// Puts what poll found into the program's sets, and gives the number of bits. It is not inlined, so that its arrays
/// are not below poll's on a stack that may be small.
#[inline(never)]
fn report(sets: &BitSets<'_>, fds: &[libc::pollfd]) -> usize {
    let mut found = [(); 3].map(|()| SmallVec::<[u64; 16]>::new());
    for set in &mut found {
        set.resize(sets.words(), 0u64);
    }
    let mut count = 0;
    for one in fds {
        for (set, words) in found.iter_mut().enumerate() {
            if is_found(one, set) {
                words[one.fd as usize / 64] |= 1 << (one.fd as usize % 64);
                count += 1;
            }
        }
    }
    for (set, words) in found.iter().enumerate() {
        sets.put(set, words);
    }
    count
}
