//! Which way of sending much data is faster here, found by trying both (A2).
//!
//! A provider whose RDMA is a copy by the kernel (shm) may lose against two copies by the
//! processors, and which wins differs between machines, sizes and applications. Knows no clock.

use crate::session::sync::{AtomicU32, Ordering};

/// A way of sending much data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In messages and through the send buffer.
    Messages,
    /// By RDMA.
    Rdma,
}

/// Large sends that are watched, or tried, before a decision.
const TRIAL: u32 = 32;
/// Large sends after the first decision until both are tried again; doubled each time.
const FIRST_TERM: u32 = 1 << 12;
const MOST_TERMS: u32 = 10;
/// RDMA must cost less than so many sixteenths: it keeps both ends in step, which has a price of
/// its own for the application.
const MARGIN: u64 = 15;

const WATCH: u32 = 0;
const TRY: u32 = 1;
const DECIDED_MESSAGES: u32 = 2;
const DECIDED_RDMA: u32 = 3;

/// What was measured. Zeroed memory is a valid start: messages first, nothing known. Send lock.
#[derive(Debug, Default)]
pub struct Preference {
    state: AtomicU32,
    /// Large sends since the state was entered.
    sends: AtomicU32,
    /// How often it was decided.
    terms: AtomicU32,
    /// Cost of both ways, thousandths of a tick per byte; 0: not known.
    costs: [AtomicU32; 2],
}

impl Preference {
    /// How to send now.
    pub fn way(&self) -> Way {
        match self.state.load(Ordering::Relaxed) {
            WATCH | DECIDED_MESSAGES => Way::Messages,
            _ => Way::Rdma,
        }
    }

    /// True once RDMA was tried and lost: a receive's size changes nothing about that.
    pub fn settled_on_messages(&self) -> bool {
        self.state.load(Ordering::Relaxed) == DECIDED_MESSAGES
    }

    /// Cost of both ways in thousandths of a tick per byte, as last measured; 0: not measured.
    fn costs(&self) -> [u32; 2] {
        [0, 1].map(|way| self.costs[way].load(Ordering::Relaxed))
    }

    /// A large send of `bytes` took `ticks` of any steady clock. True: the preferred way changed.
    pub fn record(&self, way: Way, bytes: u64, ticks: u64) -> bool {
        let before = self.way();
        let cost = &self.costs[way as usize];
        let now = (ticks.saturating_mul(1000) / bytes.max(1)).clamp(1, u32::MAX.into()) as u32;
        let old = cost.load(Ordering::Relaxed);
        // One send that met a scheduling pause must not decide.
        let now = if old == 0 { now } else { now.min(old.saturating_mul(4)) };
        let smooth = if old == 0 { now } else { old - old / 8 + now / 8 };
        cost.store(smooth.max(1), Ordering::Relaxed);
        let sends = self.sends.load(Ordering::Relaxed) + 1;
        self.sends.store(sends, Ordering::Relaxed);
        let terms = self.terms.load(Ordering::Relaxed);
        let term = FIRST_TERM << terms.min(MOST_TERMS);
        match self.state.load(Ordering::Relaxed) {
            WATCH if sends >= TRIAL => self.enter(TRY),
            TRY if sends >= TRIAL => {
                let [messages, rdma] = self.costs().map(u64::from);
                self.terms.store(terms.saturating_add(1), Ordering::Relaxed);
                let better = rdma != 0 && rdma * 16 < messages * MARGIN;
                self.enter(if better { DECIDED_RDMA } else { DECIDED_MESSAGES });
            }
            DECIDED_MESSAGES | DECIDED_RDMA if sends >= term => self.enter(WATCH),
            _ => {}
        }
        self.way() != before
    }

    /// Messages became faster, or slower: what is watched so far says nothing of them.
    pub fn restart(&self) {
        if self.state.load(Ordering::Relaxed) == WATCH {
            self.enter(WATCH);
        }
    }

    fn enter(&self, state: u32) {
        self.state.store(state, Ordering::Relaxed);
        self.sends.store(0, Ordering::Relaxed);
        match state {
            WATCH => self.costs[Way::Messages as usize].store(0, Ordering::Relaxed),
            TRY => self.costs[Way::Rdma as usize].store(0, Ordering::Relaxed),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `sends` sends at the given costs (thousandths of a tick per byte); gives how many went by RDMA.
    fn run(preference: &Preference, sends: u32, messages: u64, rdma: u64) -> u32 {
        let mut by_rdma = 0;
        for _ in 0..sends {
            let way = preference.way();
            by_rdma += u32::from(way == Way::Rdma);
            let cost = if way == Way::Rdma { rdma } else { messages };
            preference.record(way, 1 << 20, cost * (1 << 20) / 1000);
        }
        by_rdma
    }

    #[test]
    fn the_faster_way_is_kept() {
        let rdma_wins = Preference::default();
        assert!(run(&rdma_wins, 4000, 120, 80) > 3900);
        assert_eq!(rdma_wins.way(), Way::Rdma);
        let messages_win = Preference::default();
        assert_eq!(run(&messages_win, 4000, 60, 80), TRIAL);
        assert!(messages_win.settled_on_messages());
    }

    #[test]
    fn a_change_is_noticed_some_time() {
        let preference = Preference::default();
        run(&preference, 4000, 60, 80);
        assert!(run(&preference, 4 * FIRST_TERM, 200, 80) > FIRST_TERM);
        assert_eq!(preference.way(), Way::Rdma);
    }

    #[test]
    fn what_changed_while_it_was_watched_is_watched_anew() {
        let preference = Preference::default();
        run(&preference, TRIAL - 1, 200, 80);
        preference.restart();
        run(&preference, 2 * TRIAL, 60, 80);
        assert!(preference.settled_on_messages());
    }

    #[test]
    fn one_slow_send_decides_nothing() {
        let preference = Preference::default();
        run(&preference, TRIAL + 4, 100, 60);
        preference.record(Way::Rdma, 1 << 16, 1_000_000_000);
        run(&preference, TRIAL, 100, 60);
        assert_eq!(preference.way(), Way::Rdma);
    }
}
