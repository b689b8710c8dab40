//! The headers of a TCP segment, as the kernel hands them out: those of IP first.

/// Parts of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headers<'a> {
    /// The sequence number of the first byte.
    pub(crate) sequence: u32,
    /// The sequence number of the byte that the sender expects next.
    pub(crate) acknowledged: u32,
    /// Bytes of data. `None` where IP's header does not say.
    pub(crate) length: Option<u32>,
    /// The options.
    options: &'a [u8],
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]).into())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(half(bytes, at)? << 16 | half(bytes, at + 2)?)
}

impl<'a> Headers<'a> {
    /// `None` if the bytes do not begin with the headers of IP and TCP. (An IPv6 header that others follow is not read.)
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        const IP4: usize = 20;
        const IP6: usize = 40;
        const TCP: u8 = libc::IPPROTO_TCP as u8;
        let first = *bytes.first()?;
        let (ip, behind, protocol) = match first >> 4 {
            4 => (usize::from(first & 15) * 4, half(bytes, 2)?, *bytes.get(9)?),
            6 => (IP6, half(bytes, 4)?, *bytes.get(6)?),
            _ => return None,
        };
        let tcp = bytes.get(ip..).filter(|_| ip >= IP4 && protocol == TCP)?;
        let size = usize::from(tcp.get(12)? >> 4) * 4;
        let options = tcp.get(20..size)?;
        // Of a segment that is too large for the field, it is zero.
        let headers = if first >> 4 == 4 { ip + size } else { size };
        let length = behind.checked_sub(headers as u32);
        Some(Headers { sequence: word(tcp, 4)?, acknowledged: word(tcp, 8)?, length, options })
    }

    /// The sender's time stamp.
    pub(crate) fn stamp(&self) -> Option<u32> {
        const END: u8 = 0;
        const NOTHING: u8 = 1;
        const STAMPS: u8 = 8;
        let mut options = self.options;
        loop {
            match options {
                [END, ..] | [] => return None,
                [NOTHING, rest @ ..] => options = rest,
                [STAMPS, 10, rest @ ..] => return word(rest, 0),
                [_, length, ..] => options = options.get(usize::from(*length).max(2)..)?,
                [_] => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_has_no_parts() {
        let mut bytes = vec![0x45u8; 20];
        bytes[2..4].copy_from_slice(&[0, 57]);
        bytes[9] = 6;
        bytes.extend([0, 1, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8]);
        bytes.extend([0x80, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 0, 0]);
        let all = Headers::of(&bytes).unwrap();
        assert_eq!((all.sequence, all.acknowledged), (0x01020304, 0x05060708));
        assert_eq!((all.length, all.stamp()), (Some(5), Some(258)));
        for length in 0..bytes.len() {
            assert_eq!(Headers::of(&bytes[..length]), None, "{length}");
        }
        let stamp = |bytes: &[u8]| Headers::of(bytes).and_then(|all| all.stamp());
        let changed = |at: usize, to: u8| {
            let mut other = bytes.clone();
            other[at] = to;
            other
        };
        assert_eq!(stamp(&changed(43, 0)), None, "an option without a length");
        for (at, to) in [(0, 0x75), (0, 0x44), (9, 17), (32, 0x40)] {
            assert_eq!(Headers::of(&changed(at, to)), None, "{at} {to}");
        }
        assert_eq!(Headers::of(&changed(3, 0)).unwrap().length, None);
    }
}
