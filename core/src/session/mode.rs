//! How an application receives, as its peer's sender sees it (A7): three behaviours, and the mode that follows from the
//! same one three times in a row. This module does not know how a behaviour is recognised.

use super::sync::{AtomicU32, Ordering};

/// How an application received one large transfer (A7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Behaviour {
    /// A large receive, posted before anything announced data.
    LargeReceive = 1,
    /// A large receive, posted only after data had been announced: by a small receive of its
    /// beginning, or by a wait for it.
    SmallThenLarge = 2,
    /// Receives too small for RDMA, or none at all.
    SmallReceive = 3,
}

impl Behaviour {
    /// All of them.
    pub const ALL: [Behaviour; 3] =
        [Behaviour::LargeReceive, Behaviour::SmallThenLarge, Behaviour::SmallReceive];

    /// The name of the [`Mode`] that it fixes.
    pub const fn name(self) -> &'static str {
        self.fixes().name()
    }

    const fn fixes(self) -> Mode {
        match self {
            Behaviour::LargeReceive => Mode::LargeReceive,
            Behaviour::SmallThenLarge => Mode::SmallThenLarge,
            Behaviour::SmallReceive => Mode::SmallReceive,
        }
    }

    pub(super) const fn from_u32(value: u32) -> Option<Behaviour> {
        match value {
            1 => Some(Behaviour::LargeReceive),
            2 => Some(Behaviour::SmallThenLarge),
            3 => Some(Behaviour::SmallReceive),
            _ => None,
        }
    }
}

/// How much data is transferred in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// The behaviour is not known yet (A3).
    Discovery = 0,
    /// The receiver advertises, or reads what it is told of (A11, A12).
    LargeReceive = 1,
    /// The first part is announced, the rest follows into the next receive (A10).
    SmallThenLarge = 2,
    /// Everything in messages (A8).
    SmallReceive = 3,
}

impl Mode {
    /// All of them, by number.
    pub const ALL: [Mode; 4] =
        [Mode::Discovery, Mode::LargeReceive, Mode::SmallThenLarge, Mode::SmallReceive];

    pub(crate) fn from_u32(value: u32) -> Option<Mode> {
        Mode::ALL.get(value as usize).copied()
    }

    /// The stable name, as `sanctl status --json` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Discovery => "discovery",
            Mode::LargeReceive => "large-receive",
            Mode::SmallThenLarge => "small-then-large",
            Mode::SmallReceive => "small-receive",
        }
    }
}

/// So often in a row fixes the mode (A7).
pub(super) const FIXES: u32 = 3;

/// Watches one direction's behaviour. Zeroed memory is a valid start: discovery, nothing seen.
/// Send lock; may lie in memory that the processes of one side share, never in the peer's reach.
#[derive(Debug, Default)]
pub struct Observer {
    /// Mode in bits 0–7, last behaviour in 8–15, how often in a row in 16–23.
    state: AtomicU32,
    /// Transfers seen, by behaviour.
    seen: [AtomicU32; 3],
}

const fn pack(mode: Mode, last: u32, count: u32) -> u32 {
    mode as u32 | last << 8 | count << 16
}

impl Observer {
    /// The mode of this moment.
    pub fn mode(&self) -> Mode {
        Mode::from_u32(self.state.load(Ordering::Relaxed) & 0xff).unwrap_or(Mode::Discovery)
    }

    /// How often each behaviour was seen.
    pub(crate) fn seen(&self) -> [u32; 3] {
        [0, 1, 2].map(|i| self.seen[i].load(Ordering::Relaxed))
    }

    /// Counts the behaviour of one transfer; `Some` is the mode that this led to, if it is new.
    pub(crate) fn observe(&self, behaviour: Behaviour) -> Option<Mode> {
        let seen = &self.seen[behaviour as usize - 1];
        seen.store(seen.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let state = self.state.load(Ordering::Relaxed);
        let mode = self.mode();
        let last = state >> 8 & 0xff;
        let count = if last == behaviour as u32 { (state >> 16 & 0xff) + 1 } else { 1 };
        let next = match mode {
            Mode::Discovery if count >= FIXES => behaviour.fixes(),
            Mode::Discovery => Mode::Discovery,
            fixed if fixed as u32 == behaviour as u32 => fixed,
            _ => Mode::Discovery,
        };
        self.state.store(pack(next, behaviour as u32, count.min(FIXES)), Ordering::Relaxed);
        (next != mode).then_some(next)
    }

    /// Back to discovery, everything forgotten; true if the mode was another.
    pub fn rediscover(&self) -> bool {
        let before = self.mode();
        self.state.store(pack(Mode::Discovery, 0, 0), Ordering::Relaxed);
        before != Mode::Discovery
    }

    /// Everything in messages, whatever the application does: RDMA does not pay here.
    pub fn settle_on_messages(&self) {
        self.state.store(pack(Mode::SmallReceive, 0, 0), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Behaviour::{LargeReceive, SmallReceive, SmallThenLarge};

    #[test]
    fn a7_the_same_behaviour_three_times_in_a_row_fixes_the_mode() {
        for (behaviour, mode) in Behaviour::ALL.into_iter().zip(&Mode::ALL[1..]) {
            let observer = Observer::default();
            assert_eq!(observer.observe(behaviour), None);
            assert_eq!(observer.observe(behaviour), None);
            assert_eq!(observer.observe(behaviour), Some(*mode));
            assert_eq!(observer.observe(behaviour), None);
            assert_eq!(observer.mode(), *mode);
        }
    }

    #[test]
    fn a7_an_interrupted_row_fixes_nothing() {
        let observer = Observer::default();
        for behaviour in [LargeReceive, LargeReceive, SmallReceive, LargeReceive, LargeReceive] {
            assert_eq!(observer.observe(behaviour), None);
            assert_eq!(observer.mode(), Mode::Discovery);
        }
        assert_eq!(observer.observe(LargeReceive), Some(Mode::LargeReceive));
    }

    #[test]
    fn a7_a_change_of_behaviour_leads_back_to_discovery() {
        let observer = Observer::default();
        for _ in 0..3 {
            observer.observe(SmallThenLarge);
        }
        assert_eq!(observer.observe(SmallReceive), Some(Mode::Discovery));
        assert_eq!(observer.observe(SmallReceive), None);
        assert_eq!(observer.observe(SmallReceive), Some(Mode::SmallReceive));
        assert_eq!(observer.seen(), [0, 3, 3]);
    }

    #[test]
    fn rediscovery_forgets_the_row() {
        let observer = Observer::default();
        observer.observe(LargeReceive);
        observer.observe(LargeReceive);
        assert!(!observer.rediscover());
        assert_eq!(observer.observe(LargeReceive), None);
        observer.settle_on_messages();
        assert_eq!(observer.mode(), Mode::SmallReceive);
        assert!(observer.rediscover());
    }
}
