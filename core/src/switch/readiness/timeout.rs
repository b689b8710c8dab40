//! The rest of a call's time-out. The clock starts when the call first asks for the rest: a call that does not wait
//! does not ask.

use crate::sys::time;

/// See the module.
pub(super) struct Timeout {
    /// The time-out as the program gave it, in ns. `None`: for ever.
    whole: Option<u64>,
    /// Clock (ns) when the time-out began to run.
    start: Option<u64>,
}

impl Timeout {
    /// Makes a time-out of so many ns. `None`: for ever.
    pub(super) fn new(whole: Option<u64>) -> Timeout {
        Timeout { whole, start: None }
    }

    /// True if the program does not want to wait.
    #[inline]
    pub(super) fn is_zero(&self) -> bool {
        self.whole == Some(0)
    }

    /// Gives the rest in ns. `None`: for ever.
    #[inline]
    pub(super) fn left(&mut self) -> Option<u64> {
        let whole = self.whole?;
        if whole == 0 {
            return Some(0);
        }
        let now = time::now();
        Some(whole.saturating_sub(now - *self.start.get_or_insert(now)))
    }
}

/// Gives the shorter of two times. `None` is for ever.
pub(super) fn shorter(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
