//! Ends of which no address tells that they belong together: they are in different network namespaces, or NAT is
//! between them. Coins have to show it to each of them ([`Proof`]). In exchanges each end flips one at each transfer,
//! until both are convinced. Where bytes go in one direction, the receiver does something after each receive.

use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::session::one_way::{Act, ProofReceiver, ProofSender};
use crate::session::{Counts, Need, Proof, Seen, Shown, StreamWay};
use crate::switch::socket::negotiation::Agreed;
use crate::sys::segments::{self, Segments};
use crate::sys::{file, net, process, time, Fd};

fn count(fd: Fd) -> Option<Counts> {
    let Segments { bytes_out, bytes_in, bare_out, bare_in } = Segments::of(fd)?;
    Some(Counts { sent: bytes_out, received: bytes_in, bare_out, bare_in })
}

fn coin() -> bool {
    let [chance, _] = process::random();
    chance & 1 == 1
}

/// A proof for a connection, which has not begun yet, for an end that needs one or takes part in the peer's.
///
/// # Errors
/// [`Reason::Unproven`] where the kernel does not count.
pub(super) fn proof(fd: Fd, need: Need) -> Result<Proof, Reason> {
    count(fd).map(|now| Proof::new(now, need)).ok_or(Reason::Unproven)
}

/// Before a transfer: what is proven by now to this end. Where no proof is needed the ends are known to belong together.
pub(super) fn step(fd: Fd, role: Role, agreed: &mut Agreed) -> Shown {
    let Some(proof) = &mut agreed.proof else { return Shown::Same };
    // Before the kernel is asked: what the peer did before it said so is in the counts.
    let heard = ProofSender::hear(agreed.segment.note(role.peer()));
    let Some(before) = count(fd) else { return Shown::Different };
    match (proof.look(before), &proof.way) {
        (Seen::In, StreamWay::Both) => {
            proof.acknowledged_at_once = segments::acknowledges_at_once(fd);
            proof.way = StreamWay::In(ProofReceiver::new(proof.need));
        }
        (Seen::Out, StreamWay::Both) => {
            let mut sender = ProofSender::new(proof.need);
            if !net::gathers(fd) {
                sender.begin(agreed.segment.note(role));
            }
            proof.way = StreamWay::Out(sender);
        }
        (Seen::Both, _) => {
            over(fd, proof);
            if let StreamWay::Out(mut sender) = std::mem::replace(&mut proof.way, StreamWay::Both) {
                sender.rest(agreed.segment.note(role));
            }
        }
        _ => {}
    }
    if let StreamWay::Out(sender) = &mut proof.way {
        let _ = sender.next(heard, before, time::now(), coin(), agreed.segment.note(role));
    }
    let coins = match proof.way {
        StreamWay::Both => exchange(fd, before, role, agreed),
        _ => Shown::NotYet,
    };
    agreed.proof.as_mut().map_or(Shown::Same, |proof| proof.shown(coins))
}

/// Bytes go both ways: what the coins show.
fn exchange(fd: Fd, before: Counts, role: Role, agreed: &mut Agreed) -> Shown {
    let Some(Proof { coins, need, .. }) = &mut agreed.proof else { return Shown::Same };
    let shown = coins.look(before, agreed.segment.sight(role), agreed.segment.sight(role.peer()));
    if *need == Need::Proof && coin() {
        segments::acknowledge(fd);
    }
    if let Some(after) = count(fd) {
        coins.flipped(before, after);
    }
    shown
}

/// After a receive.
pub(super) fn received(fd: Fd, role: Role, agreed: &mut Agreed) {
    let Some(Proof { way: StreamWay::In(receiver), .. }) = &mut agreed.proof else { return };
    // The kernel acknowledges nothing of what is unread at once.
    if net::unread(fd) != Some(0) {
        return;
    }
    let Some(before) = count(fd) else { return };
    let act = receiver.next(before, time::now(), coin(), agreed.segment.note(role.peer()));
    match act {
        Act::Nothing => return,
        Act::PutOff => {}
        Act::LetGo => return segments::acknowledge_at_once(fd),
        Act::Acknowledge => segments::acknowledge_and_put_off(fd),
    }
    if let Some(after) = count(fd) {
        receiver.done(before, after, time::now(), agreed.segment.note(role));
    }
}

/// How a send that waits for quiet moments goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// The receiver has done nothing yet.
    Wait,
    /// It has, and this end counted what came of it: the next bytes may go.
    Go,
    /// Nothing is left to be shown.
    Over,
}

/// True if calls on the socket wait.
fn blocks(fd: Fd) -> bool {
    file::status_flags(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
}

/// Begins such a send, of so many bytes. `None` if it is a send like others, for example because it may not wait.
/// Otherwise says whether the first bytes may go before anything else, and whether the program has the kernel keep
/// small segments back.
pub(super) fn begin_pace(
    fd: Fd,
    role: Role,
    agreed: &mut Agreed,
    bytes: usize,
) -> Option<(Pace, bool)> {
    let may_wait = |proof: &&mut Proof| proof.may_wait(bytes) && blocks(fd);
    let proof = agreed.proof.as_mut().filter(may_wait)?;
    let StreamWay::Out(sender) = &mut proof.way else { return None };
    let heard = ProofSender::hear(agreed.segment.note(role.peer()));
    if sender.takes_part() {
        let is_counted = count(fd).is_some_and(|now| sender.is_counted(heard, now));
        return Some((if is_counted { Pace::Go } else { Pace::Wait }, false));
    }
    net::gather(fd, false);
    sender.begin(agreed.segment.note(role));
    // The receiver looks when something comes.
    Some((if net::is_all_acknowledged(fd) { Pace::Go } else { Pace::Wait }, true))
}

/// How it goes on.
pub(super) fn pace(fd: Fd, role: Role, agreed: &mut Agreed) -> Pace {
    let heard = ProofSender::hear(agreed.segment.note(role.peer()));
    let Some(Proof { way: StreamWay::Out(sender), .. }) = &mut agreed.proof else {
        return Pace::Over;
    };
    if !sender.is_news(heard) {
        return Pace::Wait;
    }
    let Some(now) = count(fd).filter(|_| net::is_established(fd)) else { return Pace::Over };
    let is_quiet = sender.next(heard, now, time::now(), coin(), agreed.segment.note(role));
    match (is_quiet, sender.is_over()) {
        (false, _) => Pace::Wait,
        (true, false) => Pace::Go,
        (true, true) => Pace::Over,
    }
}

/// What came of such a send.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacedSend {
    /// The program has the kernel keep small segments back.
    pub(super) gathers: bool,
    /// How long (ns) it took.
    pub(super) took: u64,
    /// Nothing came of it.
    pub(super) in_vain: bool,
}

/// Ends it.
pub(super) fn end_pace(fd: Fd, role: Role, agreed: &mut Agreed, paced: PacedSend) {
    let Some(proof) = &mut agreed.proof else { return };
    proof.waited(paced.took, paced.in_vain);
    if let StreamWay::Out(sender) = &mut proof.way {
        if paced.gathers {
            sender.rest(agreed.segment.note(role));
        }
    }
    if paced.gathers {
        net::gather(fd, true);
    }
}

/// The proof is over, or goes on in another way: the kernel acknowledges as it did before.
pub(super) fn over(fd: Fd, proof: &Proof) {
    if matches!(proof.way, StreamWay::In(_)) && proof.acknowledged_at_once {
        segments::acknowledge_at_once(fd);
    }
}
