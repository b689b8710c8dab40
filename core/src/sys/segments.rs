//! The segments of a TCP connection, as the kernel counts them at one end.

use super::net::{information, option, set_option};
use super::Fd;

/// Where tcp_info has these counts, in bytes.
const BYTES_RECEIVED: usize = 128;
const SEGMENTS_OUT: usize = 136;
const SEGMENTS_IN: usize = 140;
const DATA_SEGMENTS_IN: usize = 152;
const DATA_SEGMENTS_OUT: usize = 156;
const BYTES_SENT: usize = 200;
const BYTES_SENT_AGAIN: usize = 208;

/// How many segments went, and how many came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    /// Bytes sent, each once.
    pub(crate) bytes_out: u64,
    /// Bytes that arrived.
    pub(crate) bytes_in: u64,
    /// Segments sent that had no data.
    pub(crate) bare_out: u32,
    /// Segments without data that arrived.
    pub(crate) bare_in: u32,
}

impl Segments {
    /// The counts of a TCP socket, at one moment. `None` where the kernel does not say (before 4.19).
    pub(crate) fn of(fd: Fd) -> Option<Segments> {
        let words = information::<{ BYTES_SENT_AGAIN / 8 + 1 }>(fd)?;
        let long = |at: usize| words[at / 8];
        let short = |at: usize| (words[at / 8] >> (at % 8 * 8)) as u32;
        Some(Segments {
            bytes_out: long(BYTES_SENT).wrapping_sub(long(BYTES_SENT_AGAIN)),
            bytes_in: long(BYTES_RECEIVED),
            bare_out: short(SEGMENTS_OUT).wrapping_sub(short(DATA_SEGMENTS_OUT)),
            bare_in: short(SEGMENTS_IN).wrapping_sub(short(DATA_SEGMENTS_IN)),
        })
    }
}

/// Has the kernel acknowledge now what a TCP socket received, if it put that off until the socket sends something. The socket goes
/// on to put it off, or not to, as it did before.
pub(crate) fn acknowledge(fd: Fd) {
    if acknowledges_at_once(fd) {
        acknowledge_at_once(fd);
    } else {
        acknowledge_and_put_off(fd);
    }
}

/// Whether the kernel acknowledges at once what comes to a TCP socket and is read.
pub(crate) fn acknowledges_at_once(fd: Fd) -> bool {
    option(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK) == Ok(1)
}

/// Has the kernel acknowledge what came, now and from now on.
pub(crate) fn acknowledge_at_once(fd: Fd) {
    let _ = set_option(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &1);
}

/// Has the kernel acknowledge now what came and is read, and put off what comes next.
pub(crate) fn acknowledge_and_put_off(fd: Fd) {
    for value in [1, 0] {
        let _ = set_option(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn what_one_end_sends_is_what_arrives_at_the_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let counts = |end: &TcpStream| Segments::of(end.as_raw_fd()).unwrap();
        let before = [counts(&one), counts(&other)];
        let mut acknowledged = 0;
        for _ in 0..200 {
            one.write_all(b"request").unwrap();
            other.read_exact(&mut [0; 7]).unwrap();
            let first = counts(&other).bare_out;
            acknowledge(other.as_raw_fd());
            acknowledged += counts(&other).bare_out - first;
            other.write_all(b"answer").unwrap();
            one.read_exact(&mut [0; 6]).unwrap();
        }
        let after = [counts(&one), counts(&other)];
        let grown = |of: fn(&Segments) -> u32, end: usize| of(&after[end]) - of(&before[end]);
        assert!(acknowledged > 0);
        assert!(grown(|one| one.bare_out, 1) >= acknowledged);
        assert_eq!(grown(|one| one.bare_in, 0), grown(|one| one.bare_out, 1));
        assert_eq!((after[0].bytes_out, after[1].bytes_in), (1400, 1400));
        assert_eq!((after[1].bytes_out, after[0].bytes_in), (1200, 1200));
    }
}
