//! How the ends of the floor wait. They never sleep.

use crate::options::Placement;

/// What to do between two looks at a shared word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    yields: bool,
}

impl Spin {
    /// On one core this end gives the core away, because the other end could not run otherwise.
    pub(crate) fn new(placement: Placement) -> Spin {
        Spin { yields: placement != Placement::TwoCores }
    }

    /// Waits until `ready` gives true.
    #[inline]
    pub(crate) fn until(self, mut ready: impl FnMut() -> bool) {
        while !ready() {
            if self.yields {
                // SAFETY: sched_yield has no preconditions.
                unsafe { libc::sched_yield() };
            } else {
                std::hint::spin_loop();
            }
        }
    }
}
