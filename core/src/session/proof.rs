//! Chooses the proof for a connection of which no address tells that two processes have its two ends: [`Coins`] where
//! requests are answered, or the proof for bytes in [one direction](super::one_way).

use super::coins::{Coins, Counts, Shown};
use super::one_way::{ProofReceiver, ProofSender};

/// After so many looks in which no byte went the other way, bytes go in one direction.
const ENOUGH: u32 = 32;
/// If bytes go the other way again within so many looks, they do not.
const TOO_SOON: u32 = 16;
/// How often an end looks at most, also for a peer that is not convinced yet.
const MOST_LOOKS: u32 = 1024;
/// After so many looks at the same direction, an end that can do nothing gives up.
const SOME_LOOKS: u32 = 64;

/// After so many looks of a sender in vain, its sends wait for quiet moments. There are fewer looks where each send is
/// large, which leaves no quiet moments by itself.
const IN_VAIN: u32 = 24;
const IN_VAIN_LARGE: u32 = 4;
/// A send of so many bytes is large.
const LARGE: usize = 16 << 10;
/// So often sends may wait for nothing, and so long (ns) in all.
const MOST_WAITS: u32 = 3;
const MOST_WAITED: u64 = 40_000_000;

/// Where a connection's bytes go.
#[derive(Debug)]
pub(crate) enum StreamWay {
    /// In both directions, or nobody knows yet.
    Both,
    /// To this end.
    In(ProofReceiver),
    /// From this end.
    Out(ProofSender),
}

/// What an end has to know of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// That it has the other end of the connection.
    Proof,
    /// Nothing: it takes part in the peer's proof.
    Nothing,
}

/// Where they seem to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// See [`StreamWay`].
    Both,
    /// See [`StreamWay`].
    In,
    /// See [`StreamWay`].
    Out,
}

/// See the module. Call [`look`](Proof::look) before each transfer.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) coins: Coins,
    pub(crate) way: StreamWay,
    pub(crate) need: Need,
    last: Counts,
    since_in: u32,
    since_out: u32,
    looks: u32,
    /// How often a send has waited for nothing, and how long sends waited in all.
    waits: u32,
    waited: u64,
    /// What this end's kernel did before the proof changed it.
    pub(crate) acknowledged_at_once: bool,
}

impl Proof {
    /// Nothing is proven yet. `now` is what the kernel counts.
    pub(crate) fn new(now: Counts, need: Need) -> Self {
        let coins = Coins::new(now);
        Proof {
            coins,
            way: StreamWay::Both,
            need,
            last: now,
            since_in: 0,
            since_out: 0,
            looks: 0,
            waits: 0,
            waited: 0,
            acknowledged_at_once: false,
        }
    }

    /// Where bytes go.
    pub(crate) fn look(&mut self, now: Counts) -> Seen {
        let is_back = |since: &mut u32, moved: bool| {
            let before = std::mem::replace(since, if moved { 0 } else { since.saturating_add(1) });
            moved && before < TOO_SOON
        };
        let comes_often = is_back(&mut self.since_in, now.received != self.last.received);
        let goes_often = is_back(&mut self.since_out, now.sent != self.last.sent);
        self.last = now;
        match self.way {
            StreamWay::In(_) if !goes_often => Seen::In,
            StreamWay::Out(_) if !comes_often => Seen::Out,
            _ if self.since_out >= ENOUGH && comes_often => Seen::In,
            _ if self.since_in >= ENOUGH && goes_often => Seen::Out,
            _ => Seen::Both,
        }
    }

    /// Whether a send of so many bytes should wait for quiet moments, because nothing else shows anything. A send that
    /// the kernel may keep back waits only if it is large: a small one would wait for what the receiver puts off.
    pub(crate) fn may_wait(&self, bytes: usize) -> bool {
        let StreamWay::Out(sender) = &self.way else { return false };
        let is_large = bytes >= LARGE;
        let patience = if is_large { IN_VAIN_LARGE } else { IN_VAIN };
        (sender.takes_part() || is_large)
            && self.waits < MOST_WAITS
            && self.waited < MOST_WAITED
            && sender.in_vain() >= patience
            && !sender.is_over()
    }

    /// A send waited so long (ns), and perhaps in vain.
    pub(crate) fn waited(&mut self, time: u64, in_vain: bool) {
        self.waited += time;
        self.waits += u32::from(in_vain);
    }

    /// A sender that takes no part, and of which no send waits any more.
    fn is_hopeless(&self) -> bool {
        let is_done = self.waited == 0 || self.waits >= MOST_WAITS || self.waited >= MOST_WAITED;
        match &self.way {
            StreamWay::Out(sender) => !sender.takes_part() && self.looks > SOME_LOOKS && is_done,
            _ => false,
        }
    }

    /// What this end knows by now, with what its coins show.
    pub(crate) fn shown(&mut self, coins: Shown) -> Shown {
        let shown = match (&self.way, self.need) {
            (_, Need::Nothing) => Shown::Same,
            (StreamWay::Both, _) => return coins,
            (StreamWay::In(receiver), _) => receiver.shown(),
            (StreamWay::Out(sender), _) => sender.shown(),
        };
        self.looks += 1;
        if self.looks > MOST_LOOKS || self.is_hopeless() {
            Shown::Different
        } else {
            shown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is seen of so many looks, each after so many bytes came and went.
    fn see(proof: &mut Proof, looks: u32, came: u64, went: u64) -> Seen {
        let mut seen = Seen::Both;
        for _ in 0..looks {
            let Counts { sent, received, .. } = proof.last;
            let now = Counts { sent: sent + went, received: received + came, ..proof.last };
            seen = proof.look(now);
            match (seen, &proof.way) {
                (Seen::In, StreamWay::Both) => {
                    proof.way = StreamWay::In(ProofReceiver::new(proof.need))
                }
                (Seen::Out, StreamWay::Both) => {
                    proof.way = StreamWay::Out(ProofSender::new(proof.need))
                }
                (Seen::Both, _) => proof.way = StreamWay::Both,
                _ => {}
            }
        }
        seen
    }

    #[test]
    fn a_sender_that_may_not_take_part_gives_up() {
        let now = Counts { sent: 5, received: 5, bare_out: 0, bare_in: 0 };
        for (takes_part, waited, least, most) in [
            (true, None, MOST_LOOKS, MOST_LOOKS),
            (false, None, SOME_LOOKS, SOME_LOOKS),
            (false, Some(1), MOST_LOOKS, MOST_LOOKS),
            (false, Some(MOST_WAITED), SOME_LOOKS, SOME_LOOKS),
        ] {
            let mut proof = Proof::new(now, Need::Proof);
            let mut sender = ProofSender::new(Need::Proof);
            if takes_part {
                sender.begin(&Default::default());
            }
            proof.way = StreamWay::Out(sender);
            waited.iter().for_each(|time| proof.waited(*time, false));
            let looks = (0..).take_while(|_| proof.shown(Shown::NotYet) == Shown::NotYet).count();
            assert!((least..=most).contains(&(looks as u32)), "{takes_part} {waited:?}: {looks}");
        }
    }

    #[test]
    fn a_large_send_waits_sooner_and_one_that_may_be_kept_back_only_then() {
        let now = Counts { sent: 5, received: 5, bare_out: 0, bare_in: 0 };
        let (note, silent) =
            <(super::super::one_way::OneWayNote, super::super::one_way::OneWayNote)>::default();
        for takes_part in [false, true] {
            let mut sender = ProofSender::new(Need::Proof);
            if takes_part {
                sender.begin(&note);
            }
            let mut proof = Proof::new(now, Need::Proof);
            proof.way = StreamWay::Out(sender);
            let mut first = [None; 2];
            for look in 0..100 {
                for (first, bytes) in first.iter_mut().zip([100, LARGE]) {
                    *first = first.or(proof.may_wait(bytes).then_some(look));
                }
                if let StreamWay::Out(sender) = &mut proof.way {
                    sender.next(ProofSender::hear(&silent), now, 7, true, &note);
                }
            }
            let small = takes_part.then_some(IN_VAIN);
            assert_eq!(first, [small, Some(IN_VAIN_LARGE)]);
            (0..MOST_WAITS).for_each(|_| proof.waited(1, true));
            assert!(!proof.may_wait(LARGE));
        }
    }

    #[test]
    fn a_direction_is_seen_and_an_answer_now_and_then_forgiven() {
        let now = Counts { sent: 5, received: 5, bare_out: 0, bare_in: 0 };
        let begun = || Proof::new(now, Need::Proof);
        for (way, came, went) in [(Seen::In, 7, 0), (Seen::Out, 0, 7)] {
            let mut proof = begun();
            assert_eq!(see(&mut proof, ENOUGH - 1, came, went), Seen::Both);
            assert_eq!(see(&mut proof, 2, came, went), way);
            assert_eq!(see(&mut proof, TOO_SOON, came, went), way);
            for _ in 0..9 {
                assert_eq!(see(&mut proof, 1, 7, 7), way, "one the other way");
                assert_eq!(see(&mut proof, TOO_SOON, came, went), way);
            }
            see(&mut proof, 1, 7, 7);
            assert_eq!(see(&mut proof, 1, 7, 7), Seen::Both, "an exchange");
        }
        assert_eq!(see(&mut begun(), 500, 7, 7), Seen::Both);
        assert_eq!(see(&mut begun(), 500, 0, 0), Seen::Both);
    }
}
