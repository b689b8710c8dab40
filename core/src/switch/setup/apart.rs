//! Ends of which no address tells that they belong together: in different network namespaces, or with NAT between them. Coins
//! have to show it, to each of them ([`Proof`]). In exchanges each end flips one at each transfer, until both are convinced. Where bytes go
//! in one direction the receiver does something after each receive.

use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::session::one_way::{Act, Receiver, Sender};
use crate::session::{Counts, Proof, Seen, Shown, Way};
use crate::switch::socket::negotiation::Agreed;
use crate::sys::segments::{self, Segments};
use crate::sys::{net, process, time, Fd};

fn count(fd: Fd) -> Option<Counts> {
    let Segments { bytes_out, bytes_in, bare_out, bare_in } = Segments::of(fd)?;
    Some(Counts { sent: bytes_out, received: bytes_in, bare_out, bare_in })
}

fn coin() -> bool {
    let [chance, _] = process::random();
    chance & 1 == 1
}

/// A proof for a connection, which has not begun yet.
///
/// # Errors
/// [`Reason::Unproven`] where the kernel does not count.
pub(super) fn proof(fd: Fd) -> Result<Proof, Reason> {
    count(fd).map(Proof::new).ok_or(Reason::Unproven)
}

/// Before a transfer: what is proven by now to this end. Where no proof is needed the ends are known to belong together.
pub(super) fn step(fd: Fd, role: Role, agreed: &mut Agreed) -> Shown {
    let Some(proof) = &mut agreed.proof else { return Shown::Same };
    // Before the kernel is asked: what the peer did before it said so is in the counts.
    let heard = Sender::hear(agreed.segment.note(role.peer()));
    let Some(before) = count(fd) else { return Shown::Different };
    match (proof.look(before), &proof.way) {
        (Seen::In, Way::Both) => {
            proof.acknowledged_at_once = segments::acknowledges_at_once(fd);
            proof.way = Way::In(Receiver::default());
        }
        (Seen::Out, Way::Both) if !net::gathers(fd) => {
            proof.way = Way::Out(Sender::begin(agreed.segment.note(role)));
        }
        (Seen::Both, _) => {
            over(fd, proof);
            proof.way = Way::Both;
        }
        _ => {}
    }
    match &mut proof.way {
        Way::Both => return exchange(fd, before, role, agreed),
        Way::In(_) => {}
        Way::Out(sender) => {
            sender.next(heard, before, time::now(), coin(), agreed.segment.note(role));
        }
    }
    proof.shown().unwrap_or(Shown::NotYet)
}

/// Bytes go both ways.
fn exchange(fd: Fd, before: Counts, role: Role, agreed: &mut Agreed) -> Shown {
    let Some(Proof { coins, .. }) = &mut agreed.proof else { return Shown::Same };
    let shown = coins.look(before, agreed.segment.sight(role), agreed.segment.sight(role.peer()));
    if coin() {
        segments::acknowledge(fd);
    }
    if let Some(after) = count(fd) {
        coins.flipped(before, after);
    }
    shown
}

/// After a receive.
pub(super) fn received(fd: Fd, role: Role, agreed: &mut Agreed) {
    let Some(Proof { way: Way::In(receiver), .. }) = &mut agreed.proof else { return };
    // Of what is unread the kernel acknowledges nothing at once.
    if net::unread(fd) != Some(0) {
        return;
    }
    let Some(before) = count(fd) else { return };
    let act = receiver.next(before, time::now(), coin(), agreed.segment.note(role.peer()));
    match act {
        Act::Nothing => return,
        Act::PutOff => {}
        Act::Acknowledge => segments::acknowledge_and_put_off(fd),
    }
    if let Some(after) = count(fd) {
        receiver.done(before, after, time::now(), agreed.segment.note(role));
    }
}

/// The proof is over, or goes on in another way: the kernel acknowledges as it did before.
pub(super) fn over(fd: Fd, proof: &Proof) {
    if matches!(proof.way, Way::In(_)) && proof.acknowledged_at_once {
        segments::acknowledge_at_once(fd);
    }
}
