//! What the ends say to each other in the segment to prove that they have one connection ([`proof`](crate::proof)). Each
//! says what is its to say once. Zeroed memory is a valid start: nothing is said.
//!
//! A hostile peer may write anything there, at any time. Who reads it copies it once, and the proof judges the copy.

use crate::proof::{ANSWER, CONCLUSION, OPENING};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// See the module.
#[repr(C)]
pub(crate) struct Exchange {
    /// The connector opens.
    pub(crate) opening: Said<{ OPENING / WORD }, OPENING>,
    /// The acceptor answers.
    pub(crate) answer: Said<{ ANSWER / WORD }, ANSWER>,
    /// The connector concludes.
    pub(crate) conclusion: Said<{ CONCLUSION / WORD }, CONCLUSION>,
}

/// So many words, which are so many bytes, once they are said.
#[repr(C)]
pub(crate) struct Said<const WORDS: usize, const BYTES: usize> {
    words: [AtomicU64; WORDS],
    is_said: AtomicU32,
}

impl<const WORDS: usize, const BYTES: usize> Said<WORDS, BYTES> {
    /// Says it. Release.
    pub(crate) fn say(&self, bytes: &[u8; BYTES]) {
        for (to, from) in self.words.iter().zip(bytes.chunks_exact(WORD)) {
            let mut word = [0; WORD];
            word.copy_from_slice(from);
            to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        self.is_said.store(1, Ordering::Release);
    }

    /// What was said. Acquire.
    pub(crate) fn heard(&self) -> Option<[u8; BYTES]> {
        if self.is_said.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut bytes = [0; BYTES];
        for (to, from) in bytes.chunks_exact_mut(WORD).zip(&self.words) {
            to.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hears_what_the_other_said() {
        // SAFETY: zeroed memory is a valid start.
        let exchange: Exchange = unsafe { std::mem::zeroed() };
        assert_eq!((exchange.opening.heard(), exchange.answer.heard()), (None, None));
        let bytes = std::array::from_fn(|i| i as u8);
        exchange.answer.say(&bytes);
        assert_eq!((exchange.opening.heard(), exchange.answer.heard()), (None, Some(bytes)));
    }
}
