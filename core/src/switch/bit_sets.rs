//! The sets of descriptors that a program gives select: an array of bits each.

use crate::sys::time;
use crate::sys::user::{self, Access};
use std::cell::Cell;

/// Most descriptors of a call.
const MOST: i32 = 1 << 20;

/// 64 bits, in an array that need not be aligned.
type Word = Cell<[u8; 8]>;

/// The sets for reading, writing and urgent data. The memory is the program's.
pub struct BitSets<'a> {
    descriptors: i32,
    /// Empty where the program gave none.
    sets: [&'a [Word]; 3],
}

impl<'a> BitSets<'a> {
    /// The sets at these addresses, null for none, with a bit for each of the first `descriptors` descriptors, in whole
    /// words as fd_set has them. `None` if there cannot be so many, or if a set cannot be written: the kernel says what
    /// is wrong.
    ///
    /// # Safety
    /// The sets stay where they are while the result exists.
    #[inline]
    pub unsafe fn from_raw(descriptors: i32, sets: [*mut libc::fd_set; 3]) -> Option<Self> {
        if !(0..=MOST).contains(&descriptors) {
            return None;
        }
        let words = (descriptors as usize).div_ceil(64);
        let now = time::ticks();
        let is_there = |at: &*mut libc::fd_set| {
            at.is_null()
                || user::check_at(at.cast(), words * size_of::<Word>(), Access::Write, now).is_ok()
        };
        if !sets.iter().all(is_there) {
            return None;
        }
        let sets = sets.map(|at| match at.is_null() {
            true => &[],
            // SAFETY: so many words can be written, and stay. They need no alignment, and a Cell lets the program
            // change them.
            false => unsafe { std::slice::from_raw_parts(at.cast::<Word>(), words) },
        });
        Some(Self { descriptors, sets })
    }

    /// All descriptors in the sets are below this one.
    #[inline]
    pub(in crate::switch) fn descriptors(&self) -> i32 {
        self.descriptors
    }

    /// Words of a set.
    #[inline]
    pub(in crate::switch) fn words(&self) -> usize {
        (self.descriptors as usize).div_ceil(64)
    }

    /// A word of a set; zero where the program gave none.
    #[inline]
    pub(in crate::switch) fn bits(&self, set: usize, word: usize) -> u64 {
        self.sets[set].get(word).map_or(0, |word| u64::from_ne_bytes(word.get()))
    }

    /// Makes these words the set, where the program gave one.
    #[inline]
    pub(in crate::switch) fn put(&self, set: usize, words: &[u64]) {
        for (to, word) in self.sets[set].iter().zip(words) {
            to.set(word.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    #[test]
    fn sets_are_read_and_written_wherever_they_lie() {
        let mut bytes = [0u8; 25];
        bytes[1] = 0b101;
        bytes[9] = 0b10;
        // SAFETY: two words, one byte behind where they would be aligned.
        let sets = unsafe {
            BitSets::from_raw(65, [bytes.as_mut_ptr().add(1).cast(), null_mut(), null_mut()])
        };
        let sets = sets.unwrap();
        assert_eq!((sets.words(), sets.bits(0, 0), sets.bits(0, 1), sets.bits(0, 2)), (2, 5, 2, 0));
        sets.put(0, &[1, 1 << 63]);
        sets.put(1, &[7, 7]);
        assert_eq!((sets.bits(0, 0), sets.bits(0, 1), sets.bits(1, 0)), (1, 1 << 63, 0));
        assert_eq!((bytes[1], bytes[16], bytes[17]), (1, 128, 0));
    }

    #[test]
    fn no_call_has_more_descriptors_than_there_are() {
        for impossible in [-1, MOST + 1] {
            // SAFETY: no sets.
            assert!(unsafe { BitSets::from_raw(impossible, [null_mut(); 3]) }.is_none());
        }
    }
}
