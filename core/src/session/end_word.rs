//! One word with all that the processes and threads of an end look at before they transfer bytes: where its directions
//! are, and what else holds of it. A thread that has read it asks nothing more of the memory. This module does not know
//! what the flags mean.

use super::sync::{AtomicU32, Ordering};
use super::way_in::{InEvent, WayIn};
use super::way_out::{OutEvent, WayOut};

/// Bits for the caller's flags; above them are the ways.
const FLAGS: u32 = (1 << OUT) - 1;
const OUT: u32 = 28;
const IN: u32 = 30;

/// The word. It lies in memory that only one end's processes have. Zero: both directions are on the SAN, and no flag is
/// set.
///
/// # Ordering
///
/// A change is one read-modify-write, so none is lost: the holder of a direction's lock steps it, while others set
/// flags, or note that the connection ended. The change is sequentially consistent, because a look for sleepers follows
/// it, and a sleeper looks at the word after it has raised its counter. A look is Acquire: a thread that sees a
/// direction somewhere sees all that was done before it got there.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct EndWord(AtomicU32);

/// What the word says at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndState(u32);

impl EndState {
    /// Where the direction is that this end sends in.
    #[inline(always)]
    pub(crate) fn way_out(self) -> WayOut {
        WayOut::of(self.0 >> OUT)
    }

    /// Where the direction is that this end receives in.
    #[inline(always)]
    pub(crate) fn way_in(self) -> WayIn {
        WayIn::of(self.0 >> IN)
    }

    /// True if this end has begun to go back to TCP.
    #[inline(always)]
    pub(crate) fn is_returning(self) -> bool {
        matches!(self.way_out(), WayOut::Leaving | WayOut::Left) || self.way_in().is_read_out()
    }

    /// True if both directions are back on TCP: every process that shares the socket leaves it to the kernel.
    pub(crate) fn is_back(self) -> bool {
        self.way_out() == WayOut::Left && self.way_in() == WayIn::Back
    }

    /// True if any of these flags is set.
    #[inline(always)]
    pub(crate) fn has(self, flags: u32) -> bool {
        self.0 & flags & FLAGS != 0
    }

    /// The flags of these that are set.
    #[inline(always)]
    pub(crate) fn among(self, flags: u32) -> u32 {
        self.0 & flags & FLAGS
    }

    /// True if both directions are on the SAN, and no flags are set but these.
    #[inline(always)]
    pub(crate) fn is_on_san_with(self, flags: u32) -> bool {
        self.0 & !(flags & FLAGS) == 0
    }

    fn with_way_out(self, way: WayOut) -> EndState {
        EndState(self.0 & !(3 << OUT) | (way as u32) << OUT)
    }

    fn with_way_in(self, way: WayIn) -> EndState {
        EndState(self.0 & !(3 << IN) | (way as u32) << IN)
    }
}

impl EndWord {
    /// As zeroed memory has it.
    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        EndWord(AtomicU32::new(0))
    }

    /// An end begins with its directions on TCP. No other thread has seen it.
    pub(crate) fn begin_on_tcp(&self) {
        let begun = EndState(self.0.load(Ordering::Relaxed));
        let begun = begun.with_way_out(WayOut::Tcp).with_way_in(WayIn::Tcp);
        self.0.store(begun.0, Ordering::Release);
    }

    /// The word now. Acquire.
    #[inline(always)]
    pub(crate) fn state(&self) -> EndState {
        EndState(self.0.load(Ordering::Acquire))
    }

    /// Sets flags; true if any of them was new.
    pub(crate) fn set(&self, flags: u32) -> bool {
        self.0.fetch_or(flags & FLAGS, Ordering::SeqCst) & flags != flags
    }

    /// Clears flags; true if any of them was set.
    pub(crate) fn clear(&self, flags: u32) -> bool {
        self.0.fetch_and(!(flags & FLAGS), Ordering::SeqCst) & flags != 0
    }

    /// The direction that this end sends in takes this step; what the word says then, or `None` if that changed nothing.
    pub(crate) fn step_out(&self, event: OutEvent) -> Option<EndState> {
        self.step(|state| Some(state.with_way_out(state.way_out().step(event)?)))
    }

    /// The same for the direction that it receives in.
    pub(crate) fn step_in(&self, event: InEvent) -> Option<EndState> {
        self.step(|state| Some(state.with_way_in(state.way_in().step(event)?)))
    }

    /// Changes the word as `next` says; `None`: it stays.
    fn step(&self, next: impl Fn(EndState) -> Option<EndState>) -> Option<EndState> {
        let mut now = self.0.load(Ordering::SeqCst);
        loop {
            let after = next(EndState(now))?;
            match self.0.compare_exchange_weak(now, after.0, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(after),
                Err(other) => now = other,
            }
        }
    }
}
