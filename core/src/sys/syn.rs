//! The first segment of a TCP connection, and the time stamps of its segments.

use super::net::{option, set_option};
use super::{call, Fd};

/// setsockopt: the kernel keeps the headers of the first segment of each connection that is accepted.
pub(crate) const TCP_SAVE_SYN: i32 = 27;
/// getsockopt: those headers. The kernel forgets them.
const TCP_SAVED_SYN: i32 = 28;
/// getsockopt: the time stamp that a segment would have now.
const TCP_TIMESTAMP: i32 = 24;

/// Has the kernel keep the first segments of what will be accepted.
pub(crate) fn keep(listener: Fd) {
    // If it does not, connections are found by their addresses alone.
    let _ = set_option(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN, &1i32);
}

/// The time stamp (ms) that a segment of this end would have now.
pub(crate) fn stamp_now(fd: Fd) -> Option<u32> {
    option(fd, libc::IPPROTO_TCP, TCP_TIMESTAMP).ok().map(|stamp| stamp as u32)
}

/// The time stamp (ms) of the first segment of a connection that was accepted. The kernel tells once.
pub(crate) fn stamp_of_kept(fd: Fd) -> Option<u32> {
    // Two headers of at most 60 bytes, or one of 40 with what may follow it.
    let mut headers = [0u8; 256];
    let mut length = headers.len() as u32;
    let (at, length_at) = (headers.as_mut_ptr() as usize, &mut length as *mut _ as usize);
    call!(getsockopt, fd, libc::IPPROTO_TCP, TCP_SAVED_SYN, at, length_at).ok()?;
    stamp_in(headers.get(..length as usize)?)
}

/// The time stamp in a segment's headers, those of IP first.
fn stamp_in(headers: &[u8]) -> Option<u32> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const STAMPS: u8 = 8;
    let first = *headers.first()?;
    let ip = match first >> 4 {
        4 => usize::from(first & 15) * 4,
        6 => 40,
        _ => return None,
    };
    let tcp = headers.get(ip..)?;
    let size = usize::from(tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(20..size)?;
    loop {
        match options {
            [END, ..] | [] => return None,
            [NOTHING, rest @ ..] => options = rest,
            [STAMPS, 10, a, b, c, d, ..] => return Some(u32::from_be_bytes([*a, *b, *c, *d])),
            [_, length, ..] => options = options.get(usize::from(*length).max(2)..)?,
            [_] => return None,
        }
    }
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
            let first = stamp_of_kept(accepted.as_raw_fd()).unwrap();
            // The kernel rounds the two differently.
            let since = now.wrapping_sub(first).wrapping_add(1);
            assert!(since <= passed + 1, "{address}: {first}, then {now}");
            assert_eq!(stamp_of_kept(accepted.as_raw_fd()), None, "it is told once");
        }
    }

    #[test]
    fn nonsense_has_no_stamp() {
        let mut headers = vec![0x45u8; 20];
        headers.extend([0; 12]);
        headers.extend([0x80, 0, 0, 0, 0, 0, 0, 0]);
        headers.extend([1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 0, 0]);
        assert_eq!(stamp_in(&headers), Some(258));
        for length in 0..headers.len() {
            assert_eq!(stamp_in(&headers[..length]), None, "{length}");
        }
        headers[43] = 0;
        assert_eq!(stamp_in(&headers), None);
        headers[0] = 0x75;
        assert_eq!(stamp_in(&headers), None);
    }
}
