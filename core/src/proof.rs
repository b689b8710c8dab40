//! The proof that two processes have the two ends of one TCP connection, where no address tells. Both know numbers that
//! the kernel shows to nobody else: the sequence numbers of the first bytes of both directions, or of one.
//!
//! They are few enough to be tried out. So neither end says anything by which another process could try them out by
//! itself: a password-authenticated key exchange (SPAKE2) sees to that. Whoever does not know them has one guess for each
//! exchange. Between hosts there are few of these. A number is the clock, in steps of 64 ns, and a secret of the kernel's for
//! these two addresses and ports. So a process that had a connection of the same four before, and sees when this one is
//! made, has to guess among some hundreds or thousands. That is why there are two between hosts.
//!
//! One end *opens*, the other *answers*, and the first one *concludes*. The answer shows that its sender knows the number, and
//! the conclusion shows it too. Both name what lies between the two ends, as each of them sees it. So a process that
//! passes on what both say has nothing of it, if it can not be at both places at once.
//!
//! This module does no I/O. A proof takes some hundred microseconds of each end, once.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use spake2::{Ed25519Group, Identity, Password, Spake2};

/// What both ends know: the sequence numbers of the first bytes of both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstNumbers {
    /// Of what the connector sends.
    pub(crate) connectors: u32,
    /// Of what the acceptor sends, if that is part of the proof.
    pub(crate) acceptors: Option<u32>,
}

/// Bytes in which an end opens, answers, and concludes. InfiniBand leaves room for so few in its requests.
pub(crate) const OPENING: usize = 32;
pub(crate) const ANSWER: usize = OPENING + SHOWN;
pub(crate) const CONCLUSION: usize = SHOWN;
/// Bytes that show that an end has the key.
const SHOWN: usize = 16;

/// What an end says to open.
pub(crate) type Opening = [u8; OPENING];
/// What an end says to answer.
pub(crate) type ProofAnswer = [u8; ANSWER];
/// What an end says to conclude.
pub(crate) type Conclusion = [u8; CONCLUSION];

/// Random bytes, none of them used before. No other process can guess them.
pub(crate) type Chance = [u64; 8];

type Exchange = Spake2<Ed25519Group>;

/// A proof that has begun, as one of the ends knows it.
pub(crate) enum Proof {
    /// This end opened.
    Opened(Opened),
    /// This end answered.
    Answered(Answered),
}

/// The two ends by what they do.
const OPENS: &[u8] = b"opens";
const ANSWERS: &[u8] = b"answers";

/// What shows that this end has the key that both found, and sees that between them.
fn shown_by(end: &[u8], key: &[u8], between: &[u8]) -> Option<Hmac<Sha256>> {
    let mut shown = Hmac::<Sha256>::new_from_slice(key).ok()?;
    shown.update(end);
    shown.update(between);
    Some(shown)
}

fn parties(numbers: FirstNumbers) -> (Password, Identity, Identity) {
    let bytes = |number: u32| number.to_le_bytes();
    let mut all = bytes(numbers.connectors).to_vec();
    all.extend(numbers.acceptors.into_iter().flat_map(bytes));
    (Password::new(all), Identity::new(OPENS), Identity::new(ANSWERS))
}

/// The end that opened, until the other one has answered.
pub(crate) struct Opened(Exchange);

/// Opens: what this end says.
pub(crate) fn open(numbers: FirstNumbers, chance: Chance) -> (Opened, Opening) {
    let (password, opens, answers) = parties(numbers);
    let (state, said) =
        Exchange::start_a_with_rng(&password, &opens, &answers, Given::from(chance));
    (Opened(state), without_side(&said))
}

impl Opened {
    /// Concludes: what this end says, if the answer shows that the other end knows the number and sees the same between
    /// them.
    pub(crate) fn conclude(self, answer: &ProofAnswer, between: &[u8]) -> Option<Conclusion> {
        let (said, shown) = answer.split_at(OPENING);
        let key = self.0.finish(&[b"B", said].concat()).ok()?;
        shown_by(ANSWERS, &key, between)?.verify_truncated_left(shown).ok()?;
        Some(truncated(shown_by(OPENS, &key, between)?))
    }
}

/// The end that answered, until the other one has concluded.
pub(crate) struct Answered(Hmac<Sha256>);

/// Answers an end that opened: what this end says. `None` if that end said nothing that makes sense.
pub(crate) fn answer(
    numbers: FirstNumbers,
    opened: &Opening,
    between: &[u8],
    chance: Chance,
) -> Option<(Answered, ProofAnswer)> {
    let (password, opens, answers) = parties(numbers);
    let (state, said) =
        Exchange::start_b_with_rng(&password, &opens, &answers, Given::from(chance));
    let key = state.finish(&[b"A", opened.as_slice()].concat()).ok()?;
    let mut answer = [0; ANSWER];
    answer[..OPENING].copy_from_slice(&without_side(&said));
    answer[OPENING..].copy_from_slice(&truncated(shown_by(ANSWERS, &key, between)?));
    Some((Answered(shown_by(OPENS, &key, between)?), answer))
}

impl Answered {
    /// True if the end that opened knows the number, and sees the same between the two.
    pub(crate) fn accepts(&self, conclusion: &Conclusion) -> bool {
        self.0.clone().verify_truncated_left(conclusion).is_ok()
    }
}

fn truncated(shown: Hmac<Sha256>) -> [u8; SHOWN] {
    let mut first = [0; SHOWN];
    first.copy_from_slice(&shown.finalize().into_bytes()[..SHOWN]);
    first
}

/// What the exchange says, without the byte that tells the two sides apart.
fn without_side(said: &[u8]) -> Opening {
    let mut rest = [0; OPENING];
    rest.copy_from_slice(&said[1..]);
    rest
}

/// Gives what was given to it.
struct Given {
    chance: [u8; size_of::<Chance>()],
    at: usize,
}

impl From<Chance> for Given {
    fn from(chance: Chance) -> Self {
        let mut bytes = [0; size_of::<Chance>()];
        for (to, from) in bytes.chunks_exact_mut(size_of::<u64>()).zip(chance) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        Given { chance: bytes, at: 0 }
    }
}

impl rand_core::CryptoRng for Given {}

impl rand_core::RngCore for Given {
    fn next_u32(&mut self) -> u32 {
        rand_core::impls::next_u32_via_fill(self)
    }

    fn next_u64(&mut self) -> u64 {
        rand_core::impls::next_u64_via_fill(self)
    }

    fn fill_bytes(&mut self, to: &mut [u8]) {
        // One scalar takes all of it.
        let given = &self.chance[self.at..self.at + to.len()];
        to.copy_from_slice(given);
        self.at += to.len();
    }

    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(to);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEVEN: FirstNumbers = FirstNumbers { connectors: 7, acceptors: None };

    fn chance() -> Chance {
        std::array::from_fn(|_| crate::sys::process::random()[0])
    }

    /// Whether each end is convinced: the one that opened, and the one that answered.
    fn meet(numbers: [FirstNumbers; 2], between: [&[u8]; 2]) -> (bool, bool) {
        let (opened, word) = open(numbers[0], chance());
        let (answered, answer) = answer(numbers[1], &word, between[1], chance()).unwrap();
        match opened.conclude(&answer, between[0]) {
            Some(word) => (true, answered.accepts(&word)),
            None => (false, false),
        }
    }

    #[test]
    fn ends_of_one_connection_convince_each_other() {
        for acceptors in [None, Some(0), Some(u32::MAX)] {
            let both = FirstNumbers { acceptors, ..SEVEN };
            assert_eq!(meet([both, both], [b"a", b"a"]), (true, true));
        }
    }

    #[test]
    fn another_number_and_another_place_convince_nobody() {
        for other in [
            FirstNumbers { connectors: 8, ..SEVEN },
            FirstNumbers { acceptors: Some(0), ..SEVEN },
            FirstNumbers { connectors: 8, acceptors: Some(7) },
        ] {
            assert_eq!(meet([SEVEN, other], [b"a", b"a"]), (false, false));
        }
        assert_eq!(meet([SEVEN, SEVEN], [b"a", b"b"]), (false, false));
    }

    #[test]
    fn nothing_that_was_said_serves_again() {
        let (opened, word) = open(SEVEN, chance());
        let (answered, first) = answer(SEVEN, &word, b"", chance()).unwrap();
        assert_eq!(opened.conclude(&[0; ANSWER], b""), None, "nonsense");
        assert!(!answered.accepts(first[OPENING..].try_into().unwrap()), "its own word");
        let (again, _) = open(SEVEN, chance());
        assert_eq!(again.conclude(&first, b""), None, "an answer to another opening");
        let (answered, _) = answer(SEVEN, &word, b"", chance()).unwrap();
        assert!(!answered.accepts(&[0; CONCLUSION]));
        let points =
            (0..=u8::MAX).map(|byte| answer(SEVEN, &[byte; OPENING], b"", chance()).is_some());
        let senseless = points.filter(|made| !made).count();
        assert!(senseless > 64, "half of all words are no points: {senseless}");
    }
}
