//! The urgent mark (S8): what one word says of the newest urgent byte of a direction. Must not move bytes.

/// Bits of the position; marks are compared by their distance, so it may wrap.
const POSITION_BITS: u32 = 40;
const POSITION: u64 = (1 << POSITION_BITS) - 1;

/// The newest urgent byte: its value, its place in the stream, and the lower bits of how many there were; zero: none
/// yet. As a word: position in the lower 40 bits, the byte in the 8 above, the count in the upper 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u64);

impl Mark {
    /// The next urgent byte, before the stream's byte number `position`. Never zero.
    pub fn next(self, position: u64, byte: u8) -> Mark {
        let count = ((self.0 >> 48) as u16).checked_add(1).unwrap_or(1);
        Mark(u64::from(count) << 48 | u64::from(byte) << POSITION_BITS | position & POSITION)
    }

    /// Its value.
    pub fn byte(self) -> u8 {
        (self.0 >> POSITION_BITS) as u8
    }

    /// How many bytes of the stream come before it, for a reader that has read `total`; zero too where it is passed.
    pub fn ahead(self, total: u64) -> u64 {
        let distance = self.0.wrapping_sub(total) & POSITION;
        if distance >> (POSITION_BITS - 1) == 0 {
            distance
        } else {
            0
        }
    }

    /// True if a reader that has read `total` is at it.
    pub fn is_at(self, total: u64) -> bool {
        (self.0 ^ total) & POSITION == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
