//! Ends of which no address tells that they belong together: they are in different network namespaces, or NAT is
//! between them. A [proof] shows it to each of them. The connector opens, and the acceptor answers, in the segment that
//! the connector offers.

use crate::proof::{self, FirstNumbers, Proof};
use crate::provider::shm::Segment;
use crate::reason::Reason;
use crate::switch::socket::negotiation::Agreed;
use crate::sys::{process, roomy};

/// What a proof has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Both ends are one connection's, or nobody asks.
    Same,
    /// Nothing so far.
    NotYet,
    /// They are not.
    Different,
}

/// What stands between the two ends: the segment, in which they say it.
const BETWEEN: &[u8] = b"";

/// The connector opens, in a segment that it has not offered yet.
///
/// # Errors
/// [`Reason::OutOfMemory`].
pub(super) fn open(segment: &Segment, numbers: FirstNumbers) -> Result<Proof, Reason> {
    let (opened, opening) = with_room(|| proof::open(numbers, process::chance()))?;
    segment.exchange().opening.say(&opening);
    Ok(Proof::Opened(opened))
}

/// The acceptor answers.
///
/// # Errors
/// [`Reason::Unproven`] if the connector has not opened, or [`Reason::OutOfMemory`].
pub(super) fn answer(segment: &Segment, numbers: FirstNumbers) -> Result<Proof, Reason> {
    let opening = segment.exchange().opening.heard().ok_or(Reason::Unproven)?;
    let answered = with_room(|| proof::answer(numbers, &opening, BETWEEN, process::chance()))?;
    let (answered, answer) = answered.ok_or(Reason::Unproven)?;
    segment.exchange().answer.say(&answer);
    Ok(Proof::Answered(answered))
}

/// Goes on with a proof as far as the peer has got.
pub(super) fn step(agreed: &mut Agreed) -> Shown {
    if let Some(link) = &agreed.link {
        return match (link.is_proven(), link.has_failed()) {
            (true, _) => Shown::Same,
            (false, false) => Shown::NotYet,
            (false, true) => Shown::Different,
        };
    }
    let exchange = agreed.segment.exchange();
    match agreed.proof.take() {
        None => Shown::Same,
        Some(Proof::Opened(opened)) => match exchange.answer.heard() {
            Some(answer) => match with_room(|| opened.conclude(&answer, BETWEEN)) {
                Ok(Some(conclusion)) => {
                    exchange.conclusion.say(&conclusion);
                    Shown::Same
                }
                _ => Shown::Different,
            },
            None => {
                agreed.proof = Some(Proof::Opened(opened));
                Shown::NotYet
            }
        },
        Some(Proof::Answered(answered)) => match exchange.conclusion.heard() {
            Some(conclusion) if answered.accepts(&conclusion) => Shown::Same,
            Some(_) => Shown::Different,
            None => {
                agreed.proof = Some(Proof::Answered(answered));
                Shown::NotYet
            }
        },
    }
}

/// A step of a proof takes 9 KiB of stack.
fn with_room<T>(step: impl FnOnce() -> T) -> Result<T, Reason> {
    roomy::run(step).map_err(|_| Reason::OutOfMemory)
}
