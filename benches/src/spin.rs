//! How the floor waits: it never sleeps.

use crate::options::Placement;

/// What to do between two looks at a shared word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    yields: bool,
}

impl Spin {
    /// On one core the other end can only run if this one gives the core away.
    pub(crate) fn new(placement: Placement) -> Spin {
        Spin { yields: placement != Placement::TwoCores }
    }

    /// Waits until `ready` says so.
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
