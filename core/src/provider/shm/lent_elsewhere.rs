//! Memory that is lent between hosts. Each end has its own word, and a picture of the peer's, as over a fabric
//! everything of an end. The link tells each end what the other one did.
//!
//! The owner's word says what the peer used, and whether that may go on. The picture says what this end used of the
//! peer's memory. One access at a time *claims* it, and an owner that asks for its memory meanwhile gets the answer when
//! the access has ended.

use super::refusal::Refusal;
use super::registration::{pack, phase, MemoryRegistration, BYTES, CLOSED, OPEN, WRITING};
use super::Right;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// Lent, in use, and the owner has asked for it.
const RECALLED: u64 = 3;

/// How much of lent memory was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The number of what was lent.
    pub(crate) key: u32,
    /// Bytes read or written.
    pub(crate) bytes: u32,
    /// The peer uses no more of it.
    pub(crate) is_over: bool,
    /// It was asked for, and an access is under way.
    pub(crate) is_asked: bool,
}

impl MemoryRegistration {
    /// What is lent, or was lent last, and how much of it was used. Either end.
    pub(crate) fn usage(&self) -> Usage {
        let state = self.state.load(Acquire);
        Usage {
            key: (state >> 32) as u32,
            bytes: (state & BYTES) as u32,
            is_over: phase(state) == CLOSED,
            is_asked: phase(state) == RECALLED,
        }
    }

    /// Owner: takes in how much the peer says that it used. False if that cannot be: the peer used memory that this end
    /// has taken back, or more than was lent.
    pub(crate) fn note_usage(&self, said: Usage) -> bool {
        let length = self.length.load(Relaxed);
        let mut state = self.state.load(Acquire);
        loop {
            let counted = (state & BYTES) as u32;
            if (state >> 32) as u32 != said.key {
                // The answer to a question that this end gave up.
                let before = self.before.load(Relaxed);
                return (before >> 32) as u32 == said.key && said.bytes <= (before & BYTES) as u32;
            }
            if phase(state) != OPEN {
                return said.bytes <= counted;
            }
            if said.bytes > length {
                return false;
            }
            let next = if said.is_over { CLOSED } else { OPEN };
            let noted = pack(said.key, next, said.bytes.max(counted).into());
            match self.state.compare_exchange_weak(state, noted, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
    }

    /// Picture: an access begins to what was lent as number `key`, of `length` bytes, of which `used` were used before.
    /// Gives the address of the next byte. The caller ends the access by [`unclaim`](Self::unclaim). The peer may lend
    /// something else before that, because it hears of the end of an access before this end may.
    ///
    /// # Errors
    /// [`Refusal::NotRegistered`].
    pub(crate) fn claim(
        &self,
        key: u32,
        used: u32,
        length: u32,
        right: Right,
    ) -> Result<u64, Refusal> {
        let state = self.check(key, used.into(), length, right)?;
        let address = self.address.load(Relaxed).wrapping_add(used.into());
        let claimed = pack(key, WRITING, used.into());
        let claim = self.state.compare_exchange(state, claimed, AcqRel, Relaxed);
        claim.map(|_| address).map_err(|_| Refusal::NotRegistered)
    }

    /// Picture: the access to number `key` has ended, after `bytes` more. `is_last`: there is no other one. True if the
    /// owner is to be told that the memory is its own again, because it asked.
    pub(crate) fn unclaim(&self, key: u32, bytes: u32, is_last: bool) -> bool {
        let mut state = self.state.load(Acquire);
        loop {
            if (state >> 32) as u32 != key {
                return false;
            }
            let is_asked = phase(state) == RECALLED;
            let next = if is_asked || is_last { CLOSED } else { OPEN };
            let used = (state & BYTES) + u64::from(bytes);
            let after = pack(key, next, used);
            match self.state.compare_exchange_weak(state, after, AcqRel, Acquire) {
                Ok(_) => return is_asked,
                Err(now) => state = now,
            }
        }
    }

    /// Picture: the owner asks for what it lent as number `key`. True if it is to be told how it stands; once more when an
    /// access that is under way has ended. No access begins any more.
    pub(crate) fn recall(&self, key: u32) -> bool {
        let mut state = self.state.load(Acquire);
        loop {
            if (state >> 32) as u32 != key {
                return false;
            }
            let next = match phase(state) {
                CLOSED => return true,
                OPEN => CLOSED,
                _ => RECALLED,
            };
            let asked = pack(key, next, state & BYTES);
            match self.state.compare_exchange_weak(state, asked, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing_lent() -> MemoryRegistration {
        // SAFETY: zeroed memory is a valid start.
        unsafe { std::mem::zeroed() }
    }

    fn usage(key: u32, bytes: u32, is_over: bool) -> Usage {
        Usage { key, bytes, is_over, is_asked: false }
    }

    #[test]
    fn m2_what_the_owner_asks_for_is_claimed_no_more() {
        let picture = nothing_lent();
        picture.register(7, 1000, 100, Right::Read);
        assert_eq!(picture.claim(7, 0, 100, Right::Write), Err(Refusal::NotRegistered));
        assert_eq!(picture.claim(7, 0, 100, Right::Read), Ok(1000));
        assert!(!picture.unclaim(7, 60, false));
        assert_eq!(picture.claim(7, 0, 100, Right::Read), Err(Refusal::NotRegistered));
        assert_eq!(picture.claim(7, 60, 100, Right::Read), Ok(1060));
        assert!(!picture.unclaim(7, 0, false), "it failed");
        assert!(picture.recall(7));
        assert_eq!(picture.usage(), usage(7, 60, true));
        assert_eq!(picture.claim(7, 60, 100, Right::Read), Err(Refusal::NotRegistered));
    }

    #[test]
    fn an_owner_that_asks_during_an_access_is_told_behind_it() {
        let picture = nothing_lent();
        picture.register(1, 0, 10, Right::Write);
        assert_eq!(picture.claim(1, 0, 10, Right::Write), Ok(0));
        assert!(picture.recall(1) && picture.usage().is_asked && !picture.recall(2));
        assert!(picture.unclaim(1, 10, true));
        assert_eq!(picture.usage(), usage(1, 10, true));
        assert!(picture.recall(1), "asked once more");
    }

    #[test]
    fn an_owner_lends_anew_before_the_end_of_an_access_is_known_here() {
        let picture = nothing_lent();
        picture.register(1, 0, 10, Right::Write);
        assert_eq!(picture.claim(1, 0, 10, Right::Write), Ok(0));
        picture.register(2, 500, 20, Right::Write);
        assert!(!picture.unclaim(1, 10, true));
        assert_eq!(picture.usage(), usage(2, 0, false));
        assert_eq!(picture.claim(2, 0, 20, Right::Write), Ok(500));
    }

    #[test]
    fn an_owner_believes_no_use_of_what_it_has_taken_back() {
        let own = nothing_lent();
        own.register(3, 0, 100, Right::Read);
        assert!(own.note_usage(usage(3, 40, false)) && own.note_usage(usage(3, 10, false)));
        assert_eq!(own.done(), 40);
        assert!(!own.note_usage(usage(3, 101, false)) && !own.note_usage(usage(4, 0, false)));
        assert_eq!(own.deregister(100), Ok(40));
        assert!(own.note_usage(usage(3, 40, true)) && !own.note_usage(usage(3, 41, true)));
        own.register(4, 0, 100, Right::Read);
        assert!(own.note_usage(usage(3, 40, true)) && !own.note_usage(usage(3, 41, true)));
        assert!(own.note_usage(usage(4, 100, true)));
        assert_eq!(own.usage(), usage(4, 100, true));
    }
}
