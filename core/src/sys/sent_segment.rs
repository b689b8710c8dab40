//! Sends bytes of the program's over TCP, and has the kernel show the segment that carries them. Its header has numbers
//! that only processes know that have one of the connection's two ends.
//!
//! One control message with the bytes asks for the time at which the kernel hands the segment on. The kernel then puts
//! the segment's first bytes on the socket's error queue, in the same call. Nothing about the socket changes. The
//! segment goes by itself, also where the program has the kernel hold bytes back. Until the segment is acknowledged, the
//! kernel shows it again whenever it sends it again. While something is on the error queue the socket is ready (POLLERR).
//! So the caller [takes it off](forget) later, too.

use super::headers::Headers;
use super::net::{self, information};
use super::{actions, call, file, poll, Fd, Result};

/// Where tcp_info has the size of a segment, segments that are under way and that may be, and the peer's window (Linux
/// 5.4).
const SEGMENT_SIZE: usize = 16;
const UNDER_WAY: usize = 24;
const CONGESTION_WINDOW: usize = 80;
const WINDOW: usize = 228;
const WORDS: usize = WINDOW.div_ceil(8);

/// What a segment showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShownSegment {
    /// The sequence number of the first byte that this end sent.
    pub(crate) own: u32,
    /// The same of the peer.
    pub(crate) peers: u32,
    /// Nothing came meanwhile, which would make that another number.
    pub(crate) is_certain: bool,
}

/// What became of a send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentShown {
    /// Bytes sent.
    pub(crate) sent: usize,
    /// What their segment showed, if it did.
    pub(crate) shown: Option<ShownSegment>,
    /// Until so many bytes are acknowledged the kernel may show it again.
    pub(crate) until: u64,
}

/// What goes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtOnce {
    /// Bytes of one segment.
    pub(crate) length: usize,
    /// The program has the kernel gather bytes (TCP_CORK).
    gathers: bool,
}

/// How many of `wanted` bytes go at once in one segment: nothing waits before it, and the peer has room. `more`: the program
/// says that more follow. `None` if there is no saying, or if the program uses the error queue, or hears of it by a signal.
pub(crate) fn goes_at_once(fd: Fd, wanted: usize, more: bool) -> Option<AtOnce> {
    let words = information::<WORDS>(fd)?;
    let part = |at: usize| (words[at / 8] >> (at % 8 * 8)) as u32;
    let is_eager = || net::option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY).is_ok_and(|on| on != 0);
    let is_ready = net::is_established_by(&words)
        && (all_acknowledged(&words) || {
            // With other segments under way it goes at once if the program has asked for that.
            is_eager() && words[18] as u32 == 0 && part(UNDER_WAY) < part(CONGESTION_WINDOW) / 2
        });
    if !is_ready {
        return None;
    }
    let is_silent = file::status_flags(fd).is_ok_and(|flags| flags & libc::O_ASYNC == 0);
    let gathers = net::option(fd, libc::IPPROTO_TCP, libc::TCP_CORK).ok()? != 0;
    // Word 25 counts bytes sent, word 26 those sent again, and word 15 what is acknowledged.
    let under_way = words[25].saturating_sub(words[26]).saturating_sub(words[15]);
    let window = u64::from(part(WINDOW)).saturating_sub(under_way);
    let segment = part(SEGMENT_SIZE) as usize;
    let length = segment.min(window as usize).min(wanted);
    // Behind a small segment the next small one waits for the peer's acknowledgement, which may take 40 ms. It comes at
    // once for the first bytes.
    let is_harmless = || length == segment || net::written_by(&words) == 0 || is_eager();
    let may = is_silent
        && length > 0
        && (!(gathers || more) || is_harmless())
        && !is_queue_the_programs(fd);
    Some(AtOnce { length, gathers }).filter(|_| may)
}

fn all_acknowledged(words: &[u64; WORDS]) -> bool {
    // The low half of word 3 counts segments under way, and that of word 18 bytes that are not sent yet.
    words[3] as u32 == 0 && words[18] as u32 == 0
}

/// True if the program reads the error queue, as far as its options tell.
fn is_queue_the_programs(fd: Fd) -> bool {
    const IP_RECVERR: i32 = 11;
    const IPV6_RECVERR: i32 = 25;
    let is_set = |(level, name)| net::option(fd, level, name).is_ok_and(|value| value != 0);
    let all = [
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
        (libc::IPPROTO_IP, IP_RECVERR),
        (libc::IPPROTO_IPV6, IPV6_RECVERR),
    ];
    all.into_iter().any(is_set)
}

/// Has the kernel send what it gathers. It goes on gathering what comes later.
fn push(fd: Fd) {
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    // The option itself has no effect on a socket that gathers. To set the option sends what is there.
    let Ok(before) = net::option(fd, level, name) else { return };
    let _ = net::set_option(fd, level, name, &1i32);
    if before == 0 {
        let _ = net::set_option(fd, level, name, &0i32);
    }
}

/// Sends the bytes that [go at once](goes_at_once), without waiting.
///
/// # Errors
/// As send. Never raises SIGPIPE.
pub(crate) fn send(fd: Fd, pieces: &[libc::iovec], at_once: AtOnce) -> Result<SentShown> {
    const CONTROL: usize = 3;
    // A control message: its length, level and type, then one word.
    let mut control = [0u64; CONTROL];
    // SAFETY: CMSG_LEN only computes.
    control[0] = unsafe { libc::CMSG_LEN(size_of::<u32>() as u32) }.into();
    control[1] = libc::SOL_SOCKET as u64 | (libc::SO_TIMESTAMPING as u64) << 32;
    control[2] = libc::SOF_TIMESTAMPING_TX_SCHED.into();
    let mut message = net::message_of(pieces);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // Bytes written, and bytes received. Nothing that takes long comes between, so that seldom anything arrives there.
    let counts = || {
        information::<WORDS>(fd).map(|words| (net::written_by(&words), net::received_by(&words)))
    };
    let before = counts();
    let sent = actions::done(call!(sendmsg, fd, &message as *const _ as usize, flags))?;
    if at_once.gathers {
        push(fd);
    }
    let after = counts();
    let headers = show(fd, sent);
    let shown = before.zip(after).zip(headers).and_then(|((before, after), headers)| {
        let ((written, came), (sequence, acknowledged)) = (before, headers);
        // What another thread sends meanwhile makes the number unknown.
        (after.0 == written + sent as u64).then(|| ShownSegment {
            own: sequence.wrapping_sub(written as u32),
            peers: acknowledged.wrapping_sub(came as u32),
            is_certain: after.1 == came,
        })
    });
    let until = before.map_or(u64::MAX, |(written, _)| written + sent as u64);
    Ok(SentShown { sent, shown, until })
}

/// Takes everything off the error queue. The sequence number of the segment of so many bytes, and of what it
/// acknowledges, if that was there. Devices on top of one another show a segment once each.
fn show(fd: Fd, sent: usize) -> Option<(u32, u32)> {
    /// Bytes in front of IP's header: mostly Ethernet's, without or with a VLAN's. Tunnels have none, and IPoIB has its own.
    const LINKS: [usize; 5] = [14, 18, 0, 24, 4];
    let mut found = None;
    // The largest headers.
    let mut bytes = [0u8; 24 + 60 + 60];
    while let Ok(length) = take(fd, &mut bytes) {
        let of = |link: usize| Headers::of(bytes.get(link..length)?);
        let is_it = |headers: &Headers| headers.length == Some(sent as u32);
        let segment = LINKS.into_iter().filter_map(of).find(is_it);
        found = found.or(segment.map(|headers| (headers.sequence, headers.acknowledged)));
    }
    found
}

/// Takes something off the error queue.
fn take(fd: Fd, bytes: &mut [u8]) -> Result<usize> {
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let message = net::message_of(std::slice::from_mut(&mut piece));
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    call!(recvmsg, fd, &message as *const _ as usize, flags)
}

/// Takes off the error queue what came there of a segment that was sent again. False once all up to `position` is
/// acknowledged, after which nothing more comes, or once the queue is the program's.
pub(crate) fn forget(fd: Fd, position: u64) -> bool {
    // Asked first: what comes there later is taken off later.
    let words = information::<WORDS>(fd);
    // Word 15 counts acknowledged bytes, and of a connector the first segment as one.
    let may_come = words.is_some_and(|words| !all_acknowledged(&words) && words[15] <= position);
    let is_there = poll::poll_one(fd, 0).is_ok_and(|events| events & libc::POLLERR != 0);
    if is_there {
        if is_queue_the_programs(fd) {
            return false;
        }
        let _ = show(fd, 0);
    }
    may_come
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::syn;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn send_shown(from: &TcpStream, bytes: &[u8]) -> Option<ShownSegment> {
        let fd = from.as_raw_fd();
        let at_once = goes_at_once(fd, bytes.len(), false).unwrap();
        assert_eq!(at_once.length, bytes.len());
        let piece =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let result = send(fd, &[piece], at_once).unwrap();
        assert_eq!(result.sent, bytes.len());
        result.shown
    }

    #[test]
    fn both_ends_know_the_first_byte_and_the_bytes_arrive() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            syn::keep(listener.as_raw_fd());
            let mut connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            let first_byte = syn::kept(accepted.as_raw_fd()).unwrap().first_byte;
            let shown = send_shown(&connector, b"request").unwrap();
            assert_eq!(shown.own, first_byte);
            let mut bytes = [0; 7];
            accepted.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"request");
            accepted.write_all(b"answer").unwrap();
            connector.read_exact(&mut bytes[..6]).unwrap();
            let shown = send_shown(&connector, b"another").unwrap();
            assert_eq!(shown.own, first_byte);
            accepted.read_exact(&mut bytes).unwrap();
            let back = send_shown(&accepted, b"answer").unwrap();
            assert_eq!((back.peers, back.own), (first_byte, shown.peers));
            assert!(shown.is_certain && back.is_certain);
            connector.read_exact(&mut bytes[..6]).unwrap();
            // The connector acknowledges with what it sends.
            connector.write_all(b"the end").unwrap();
            accepted.read_exact(&mut bytes).unwrap();
            accepted.write_all(b"answer").unwrap();
            connector.read_exact(&mut bytes[..6]).unwrap();
            for (end, position) in [(&connector, 14), (&accepted, 6)] {
                assert!(!forget(end.as_raw_fd(), position));
            }
        }
    }

    #[test]
    fn a_socket_that_gathers_sends_at_once_and_gathers_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        syn::keep(listener.as_raw_fd());
        let connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let first_byte = syn::kept(accepted.as_raw_fd()).unwrap().first_byte;
        accepted.set_nonblocking(true).unwrap();
        let fd = connector.as_raw_fd();
        net::set_option(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &1i32).unwrap();
        let mut bytes = [0; 100];
        for no_delay in [0, 1] {
            if no_delay != 0 {
                for more in [true, false] {
                    assert_eq!(goes_at_once(fd, 1, more), None, "what follows would wait");
                }
                net::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &no_delay).unwrap();
                // To set it sends what was gathered before.
                assert_eq!(accepted.read(&mut bytes).unwrap(), 8);
            }
            assert_eq!(send_shown(&connector, b"header").unwrap().own, first_byte);
            assert_eq!(accepted.read(&mut bytes).unwrap(), 6);
            for (name, value) in [(libc::TCP_CORK, 1), (libc::TCP_NODELAY, no_delay)] {
                assert_eq!(net::option(fd, libc::IPPROTO_TCP, name), Ok(value), "{name}");
            }
            (&connector).write_all(b"gathered").unwrap();
            assert!(accepted.read(&mut bytes).is_err());
        }
    }

    #[test]
    fn nothing_is_asked_where_the_program_uses_the_queue_or_bytes_are_under_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = connector.as_raw_fd();
        assert!(goes_at_once(fd, 1, false).is_some());
        for (level, name) in
            [(libc::SOL_SOCKET, libc::SO_ZEROCOPY), (libc::IPPROTO_IP, libc::IP_RECVERR)]
        {
            net::set_option(fd, level, name, &1i32).unwrap();
            assert_eq!(goes_at_once(fd, 1, false), None, "{name}");
            net::set_option(fd, level, name, &0i32).unwrap();
        }
        assert!(goes_at_once(fd, 1, false).is_some());
        connector.set_nonblocking(true).unwrap();
        while connector.write(&[0; 1 << 16]).is_ok() {}
        assert_eq!(goes_at_once(fd, 1, false), None, "there is no room");
        let alone = net::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        assert_eq!(goes_at_once(alone, 1, false), None);
        file::close(alone);
    }
}
