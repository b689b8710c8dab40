//! The first segment of a TCP connection, and the time stamps of its segments.

use super::headers::Headers;
use super::net::{option, set_option};
use super::{call, Fd};

/// setsockopt: the kernel keeps the headers of the first segment of each connection that is accepted.
pub(crate) const TCP_SAVE_SYN: i32 = 27;
/// getsockopt: those headers. The kernel forgets them.
const TCP_SAVED_SYN: i32 = 28;
/// getsockopt: the time stamp that a segment would have now.
const TCP_TIMESTAMP: i32 = 24;

/// Parts of a connection's first segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstSegment {
    /// Its time stamp (ms), if it has one.
    pub(crate) stamp: Option<u32>,
    /// The sequence number of the first byte that follows.
    pub(crate) first_byte: u32,
}

/// Has the kernel keep the first segments of what will be accepted.
pub(crate) fn keep(listener: Fd) {
    // If it does not, ends find and know each other in other ways, or not at all.
    let _ = set_option(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN, &1i32);
}

/// The time stamp (ms) that a segment of this end would have now.
pub(crate) fn stamp_now(fd: Fd) -> Option<u32> {
    option(fd, libc::IPPROTO_TCP, TCP_TIMESTAMP).ok().map(|stamp| stamp as u32)
}

/// The first segment of a connection that was accepted. The kernel tells once.
pub(crate) fn kept(fd: Fd) -> Option<FirstSegment> {
    // Two headers of at most 60 bytes, or one of 40 with what may follow it.
    let mut headers = [0u8; 256];
    let mut length = headers.len() as u32;
    let (at, length_at) = (headers.as_mut_ptr() as usize, &mut length as *mut _ as usize);
    call!(getsockopt, fd, libc::IPPROTO_TCP, TCP_SAVED_SYN, at, length_at).ok()?;
    let headers = Headers::of(headers.get(..length as usize)?)?;
    Some(FirstSegment { stamp: headers.stamp(), first_byte: headers.sequence.wrapping_add(1) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ends_know_the_first_segments_time() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            keep(listener.as_raw_fd());
            let before = std::time::Instant::now();
            let connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let now = stamp_now(connector.as_raw_fd()).unwrap();
            let passed = before.elapsed().as_millis() as u32 + 1;
            let (accepted, _) = listener.accept().unwrap();
            let first = kept(accepted.as_raw_fd()).unwrap().stamp.unwrap();
            // The kernel rounds the two differently.
            let since = now.wrapping_sub(first).wrapping_add(1);
            assert!(since <= passed + 1, "{address}: {first}, then {now}");
            assert_eq!(kept(accepted.as_raw_fd()), None, "it is told once");
        }
    }
}
