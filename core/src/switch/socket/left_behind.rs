//! A signal handler may interrupt its own thread in a look at an epoll set, and remove registrations from that set.
//! They are kept here until the look ends.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Most registrations that handlers remove within one look.
pub(super) const MOST: usize = 16;

/// See the module. The set's lock is held, by the thread that a handler interrupted.
#[derive(Default)]
pub(super) struct LeftBehind {
    /// How many of the places were taken.
    taken: AtomicU32,
    /// Each one above the index of a registration; zero: none.
    places: [AtomicU32; MOST],
}

impl LeftBehind {
    /// True if there are any.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        self.taken.load(Relaxed) != 0
    }

    /// Notes the registration at `index`. Where more than [`MOST`] are noted, the set keeps the others, and their sessions, for ever.
    pub(super) fn note(&self, index: u32) {
        let place = self.taken.fetch_add(1, Relaxed) as usize;
        if let Some(place) = self.places.get(place) {
            place.store(index + 1, Relaxed);
        }
    }

    /// Takes the registrations that were noted. A handler may note more meanwhile.
    pub(super) fn take(&self) -> impl Iterator<Item = u32> + '_ {
        self.taken.store(0, Relaxed);
        self.places.iter().filter_map(|place| place.swap(0, Relaxed).checked_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_taken_once() {
        let left = LeftBehind::default();
        assert!(!left.any());
        (0..2 * MOST as u32).for_each(|index| left.note(index));
        assert!(left.any());
        assert_eq!(left.take().collect::<Vec<_>>(), (0..MOST as u32).collect::<Vec<_>>());
        assert!(!left.any() && left.take().next().is_none());
        left.note(7);
        assert_eq!(left.take().collect::<Vec<_>>(), [7]);
    }
}
