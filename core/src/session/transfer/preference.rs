//! Which way of sending much data is faster here, found by trying both (A2).
//!
//! A provider whose RDMA is a copy by the kernel (shm) may lose against two copies by the processors. Which one wins
//! differs between machines, sizes and applications. This module knows no clock.

use crate::session::sync::{AtomicU32, AtomicU64, Ordering};
use std::fmt;

/// A way of sending much data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In messages and through the send buffer.
    Messages,
    /// By RDMA.
    Rdma,
}

/// A round begins with so many large sends and bytes that are not measured: what the buffers still
/// hold, and what the receiver has still posted, belong to the way before.
const LEAD_SENDS: u32 = 8;
const LEAD_BYTES: u64 = 1 << 20;
/// Large sends and bytes that are measured in a round.
const ROUND_SENDS: u32 = 24;
const ROUND_BYTES: u64 = 2 << 20;
/// Rounds of each way, in turns. The median decides: one that met a scheduling pause does not.
const ROUNDS: u32 = 3;
/// Large sends after the first decision until both are tried again; doubled each time.
const FIRST_TERM: u32 = 1 << 13;
const MOST_TERMS: u32 = 10;
/// RDMA must cost less than so many sixteenths: it keeps both ends in step, which has a price of
/// its own for the application.
const MARGIN: u64 = 15;
/// What an application does between two sends counts as no more than so many times the send.
const MOST_BETWEEN: u64 = 8;

/// States before these are rounds, even ones of messages, odd ones of RDMA.
const DECIDED_MESSAGES: u32 = 2 * ROUNDS;
const DECIDED_RDMA: u32 = DECIDED_MESSAGES + 1;

/// What was measured: the time from the end of one large send to the end of the next, which is what
/// the application gets. The time in a send alone would leave out what the receiver does with
/// messages afterwards. Zeroed memory is a valid start: messages first, nothing known. Send lock.
#[derive(Debug, Default)]
pub struct Preference {
    state: AtomicU32,
    /// How often it was decided.
    terms: AtomicU32,
    /// 1: the round, or the term, is past its lead.
    measures: AtomicU32,
    /// Large sends, bytes and ticks of the lead, or of what is measured.
    sends: AtomicU32,
    bytes: AtomicU64,
    ticks: AtomicU64,
    /// When the last large send ended, in ticks.
    ended: AtomicU64,
    /// What each round cost, thousandths of a tick per byte.
    costs: [AtomicU32; DECIDED_MESSAGES as usize],
}

impl Preference {
    /// How to send now.
    pub fn way(&self) -> Way {
        match self.state.load(Ordering::Relaxed) {
            DECIDED_RDMA => Way::Rdma,
            DECIDED_MESSAGES => Way::Messages,
            round if round.is_multiple_of(2) => Way::Messages,
            _ => Way::Rdma,
        }
    }

    /// A large send that began at `began` moved `bytes` by now, `ended`, by this way; both in ticks of
    /// any steady clock. It may be part of a send that goes on. True: another way is preferred now.
    pub(crate) fn record(&self, way: Way, bytes: u64, began: u64, ended: u64) -> bool {
        let last = self.ended.load(Ordering::Relaxed);
        self.ended.store(ended, Ordering::Relaxed);
        // Two threads may send in turns: one's call begins before the other's ends.
        let sending = ended.saturating_sub(began.max(last));
        let between = began.saturating_sub(last).min(sending.saturating_mul(MOST_BETWEEN));
        let sends = self.sends.load(Ordering::Relaxed) + 1;
        let bytes = self.bytes.load(Ordering::Relaxed) + bytes;
        let ticks = self.ticks.load(Ordering::Relaxed).saturating_add(sending + between);
        self.sends.store(sends, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.ticks.store(ticks, Ordering::Relaxed);
        let state = self.state.load(Ordering::Relaxed);
        if state >= DECIDED_MESSAGES {
            let terms = self.terms.load(Ordering::Relaxed);
            if sends >= FIRST_TERM << terms.min(MOST_TERMS) {
                self.enter(0);
            }
        } else if self.measures.load(Ordering::Relaxed) == 0 {
            if sends >= LEAD_SENDS && bytes >= LEAD_BYTES {
                self.count_anew();
                self.measures.store(1, Ordering::Relaxed);
            }
        } else if sends >= ROUND_SENDS && bytes >= ROUND_BYTES || self.has_lost(state, bytes, ticks)
        {
            let cost = (ticks.saturating_mul(1000) / bytes.max(1)).clamp(1, u32::MAX.into());
            self.costs[state as usize].store(cost as u32, Ordering::Relaxed);
            self.enter(if state + 1 == DECIDED_MESSAGES { self.decide() } else { state + 1 });
        }
        self.way() != way
    }

    /// True if RDMA took so long already that this round costs more than twice what messages did.
    fn has_lost(&self, round: u32, bytes: u64, ticks: u64) -> bool {
        let messages = |round: u32| u64::from(self.costs[round as usize].load(Ordering::Relaxed));
        let most = || 2 * messages(round - 1) * bytes.max(ROUND_BYTES);
        self.way() == Way::Rdma && ticks.saturating_mul(1000) > most()
    }

    fn decide(&self) -> u32 {
        let terms = self.terms.load(Ordering::Relaxed);
        self.terms.store(terms.saturating_add(1), Ordering::Relaxed);
        let median = |first: usize| {
            let round = |n: usize| self.costs[first + 2 * n].load(Ordering::Relaxed);
            let mut costs: [u32; ROUNDS as usize] = std::array::from_fn(round);
            costs.sort_unstable();
            u64::from(costs[costs.len() / 2])
        };
        if median(1) * 16 < median(0) * MARGIN {
            DECIDED_RDMA
        } else {
            DECIDED_MESSAGES
        }
    }

    /// Messages became faster, or slower: what was measured so far says nothing of them.
    pub(crate) fn restart(&self) {
        if self.state.load(Ordering::Relaxed) < DECIDED_MESSAGES {
            self.enter(0);
        }
    }

    fn enter(&self, state: u32) {
        self.state.store(state, Ordering::Relaxed);
        self.measures.store(0, Ordering::Relaxed);
        self.count_anew();
    }

    fn count_anew(&self) {
        self.sends.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.ticks.store(0, Ordering::Relaxed);
    }
}

/// What was measured: a log line's part.
impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let decided = self.state.load(Ordering::Relaxed) >= DECIDED_MESSAGES;
        f.write_str(if decided { "decided" } else { "tried" })?;
        f.write_str(", thousandths of a tick per byte, messages and RDMA in turns:")?;
        self.costs.iter().try_for_each(|cost| write!(f, " {}", cost.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An application that sends 64 KiB pieces back to back.
    #[derive(Default)]
    struct Application {
        preference: Preference,
        now: u64,
    }

    const PIECE: u64 = 1 << 16;

    impl Application {
        /// Sends so many pieces at the given costs (thousandths of a tick per byte); gives how many
        /// went by RDMA. `between`: ticks that pass between two sends.
        fn send(&mut self, sends: u32, messages: u64, rdma: u64, between: u64) -> u32 {
            let mut by_rdma = 0;
            for _ in 0..sends {
                let way = self.preference.way();
                by_rdma += u32::from(way == Way::Rdma);
                self.one(if way == Way::Rdma { rdma } else { messages }, between);
            }
            by_rdma
        }

        fn one(&mut self, cost: u64, between: u64) {
            let began = self.now + between;
            self.now = began + cost * PIECE / 1000;
            self.preference.record(self.way(), PIECE, began, self.now);
        }

        fn way(&self) -> Way {
            self.preference.way()
        }
    }

    /// Sends of a piece that a whole trial takes.
    const TRIAL: u32 = DECIDED_MESSAGES * ((LEAD_BYTES + ROUND_BYTES) / PIECE) as u32;

    #[test]
    fn the_faster_way_is_kept() {
        let mut rdma_wins = Application::default();
        assert_eq!(rdma_wins.send(TRIAL, 120, 80, 0), TRIAL / 2);
        assert_eq!(rdma_wins.way(), Way::Rdma);
        assert_eq!(rdma_wins.send(2000, 120, 80, 0), 2000);
        let mut messages_win = Application::default();
        assert_eq!(messages_win.send(TRIAL, 60, 80, 0), TRIAL / 2);
        assert_eq!(messages_win.send(2000, 60, 80, 0), 0);
    }

    #[test]
    fn a_change_is_noticed_some_time() {
        let mut application = Application::default();
        application.send(TRIAL, 60, 80, 0);
        assert!(application.send(4 * FIRST_TERM, 200, 80, 0) > FIRST_TERM);
        assert_eq!(application.way(), Way::Rdma);
    }

    #[test]
    fn what_changed_while_it_was_measured_is_measured_anew() {
        let mut application = Application::default();
        application.send(TRIAL - 1, 200, 80, 0);
        application.preference.restart();
        assert_eq!(application.send(TRIAL, 60, 80, 0), TRIAL / 2);
        assert_eq!(application.way(), Way::Messages);
    }

    #[test]
    fn one_slow_send_decides_nothing() {
        let mut application = Application::default();
        let round = TRIAL / DECIDED_MESSAGES;
        application.send(round + round / 2, 100, 60, 0);
        application.one(1_000_000_000, 0);
        application.send(TRIAL, 100, 60, 0);
        assert_eq!(application.way(), Way::Rdma);
    }

    /// The receiver's copy counts, although it goes on after the send.
    #[test]
    fn what_the_application_waits_between_two_sends_counts() {
        let mut application = Application::default();
        for _ in 0..TRIAL {
            match application.way() {
                Way::Messages => application.one(40, 60 * PIECE / 1000),
                Way::Rdma => application.one(80, 0),
            }
        }
        assert_eq!(application.way(), Way::Rdma);
    }

    /// It sleeps much longer than it sends: still the cheaper send is found.
    #[test]
    fn an_idle_application_decides_by_its_sends() {
        let mut application = Application::default();
        for n in 0..TRIAL {
            application.send(1, 100, 50, 1_000_000 + u64::from(n % 7) * 100_000);
        }
        assert_eq!(application.way(), Way::Rdma);
    }

    /// A way that is many times slower is not followed to the end of its round.
    #[test]
    fn a_hopeless_round_ends_early() {
        let mut application = Application::default();
        assert!(application.send(TRIAL, 10, 1000, 0) < TRIAL / 4);
    }
}
