//! The urgent mark (S8): what two words say of the urgent bytes of a direction. Must not move bytes.

/// Bits of the position; marks are compared by their distance, so it may wrap.
const POSITION_BITS: u32 = 40;
const POSITION: u64 = (1 << POSITION_BITS) - 1;

/// The newest urgent byte: its value, its place in the stream, where it lies as well, and the lower bits of how many there
/// were. As a word: position in the lower 40 bits, the byte in the 8 above, the count in the upper 16. Zero: none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(pub u64);

impl Mark {
    /// The next urgent byte, the stream's byte number `position`. Never zero.
    pub(crate) fn next(self, position: u64, byte: u8) -> Mark {
        let count = ((self.0 >> 48) as u16).checked_add(1).unwrap_or(1);
        Mark(u64::from(count) << 48 | u64::from(byte) << POSITION_BITS | position & POSITION)
    }

    /// Its value.
    pub(crate) fn byte(self) -> u8 {
        (self.0 >> POSITION_BITS) as u8
    }

    /// How many bytes of the stream come before it, for a reader that has read `total`; zero too where it is passed.
    pub(crate) fn ahead(self, total: u64) -> u64 {
        let distance = self.0.wrapping_sub(total) & POSITION;
        if distance >> (POSITION_BITS - 1) == 0 {
            distance
        } else {
            0
        }
    }

    /// True if a reader that has read `total` is at it.
    pub(crate) fn is_at(self, total: u64) -> bool {
        (self.0 ^ total) & POSITION == 0
    }
}

/// Urgent bytes that are gone: each was the next to be read when a newer one replaced it. A reader that does not read
/// urgent bytes inline passes them over. As a word: position of the first in the lower 40 bits, above how many follow
/// each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone(pub u64);

impl Gone {
    /// After the byte at `mark` was replaced, of a reader that had read `total`.
    pub(crate) fn with(self, mark: Mark, total: u64) -> Gone {
        let ahead = self.ahead(total);
        let next = total.wrapping_add(ahead);
        if !mark.is_at(next) {
            return self;
        }
        let first = next & POSITION;
        let behind_others = self.0 >> POSITION_BITS != 0 && (self.end() ^ next) & POSITION == 0;
        // One whose number does not fit is forgotten: its bytes are read, or count as ordinary ones.
        match self.0.checked_add(1 << POSITION_BITS) {
            Some(longer) if behind_others => Gone(longer),
            _ => Gone(1 << POSITION_BITS | first),
        }
    }

    fn end(self) -> u64 {
        self.0.wrapping_add(self.0 >> POSITION_BITS)
    }

    /// How many of the next bytes are gone, for a reader that has read `total`.
    pub(crate) fn ahead(self, total: u64) -> u64 {
        let (passed, count) = (total.wrapping_sub(self.0) & POSITION, self.0 >> POSITION_BITS);
        count.saturating_sub(passed)
    }
}

/// Which of the bytes that a receiver left unread it does not get any more: the first few, which newer urgent bytes
/// replaced, and one that it read out of its place. As a word: how many the first are in the upper 24 bits; one above the
/// number of bytes before the other in the lower 40. Zero: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Omitted(pub u64);

impl Omitted {
    /// The first `gone`, and the one behind `read_after` bytes.
    pub(crate) fn new(gone: u64, read_after: Option<u64>) -> Omitted {
        Omitted(gone << POSITION_BITS | read_after.map_or(0, |before| (before + 1) & POSITION))
    }

    /// How many of the first ones.
    pub(crate) fn first(self) -> u64 {
        self.0 >> POSITION_BITS
    }

    /// How many bytes come before the other, if there is one.
    pub(crate) fn other(self) -> Option<u64> {
        (self.0 & POSITION).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s8_what_is_omitted_is_told_in_a_word() {
        assert_eq!((Omitted(0).first(), Omitted(0).other()), (0, None));
        for (gone, other) in
            [(0, None), (3, None), (0, Some(0)), (2, Some(7)), (0xff_ffff, Some(POSITION - 2))]
        {
            let omitted = Omitted::new(gone, other);
            assert_eq!((omitted.first(), omitted.other()), (gone, other));
        }
    }

    #[test]
    fn s8_what_is_replaced_where_it_is_to_be_read_is_gone() {
        let none = Gone(0);
        assert_eq!(none.ahead(0), 0);
        assert_eq!(none.with(Mark(0).next(7, b'!'), 5), none, "something lies before it");
        assert_eq!(none.with(Mark(0).next(7, b'!'), 8), none, "it was passed");
        for start in [0, 7, POSITION - 1, POSITION, u64::MAX - 1] {
            let mut gone = none;
            for n in 0..4 {
                assert_eq!(gone.ahead(start), n);
                gone = gone.with(Mark(0).next(start.wrapping_add(n), b'!'), start);
            }
            assert_eq!(gone.ahead(start.wrapping_add(3)), 1);
            assert_eq!(gone.ahead(start.wrapping_add(4)), 0);
            assert_eq!(gone.ahead(start.wrapping_sub(1)), 0);
            let later = start.wrapping_add(100);
            assert_eq!(gone.with(Mark(0).next(later, b'!'), later).ahead(later), 1);
        }
    }

    #[test]
    fn s8_a_mark_has_its_byte_and_its_place() {
        for position in [0, 5, POSITION, POSITION + 1, u64::MAX] {
            let mark = Mark(0).next(position, b'!');
            assert_eq!(mark.byte(), b'!');
            assert!(mark.is_at(position) && !mark.is_at(position.wrapping_add(1)));
            assert_eq!(mark.ahead(position), 0);
            assert_eq!(mark.ahead(position.wrapping_sub(7)), 7);
            assert_eq!(mark.ahead(position.wrapping_add(7)), 0);
        }
    }

    #[test]
    fn s8_equal_urgent_bytes_at_one_place_are_told_apart() {
        let mut mark = Mark(0);
        for _ in 0..70_000 {
            let next = mark.next(3, 0);
            assert!(next != mark && next.0 != 0);
            mark = next;
        }
    }
}
