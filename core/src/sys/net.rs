//! Sockets. Most of them are the anchors of connections.

use super::{actions, call, file, Errno, Fd, Result};
use std::mem::{size_of, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// recv on an anchor into memory of ours.
pub fn recv(fd: Fd, buffer: &mut [u8], flags: i32) -> Result<usize> {
    call!(recvfrom, fd, buffer.as_mut_ptr() as usize, buffer.len(), flags, 0, 0)
}

/// Receives what an anchor has, without waiting, into the program's memory, which the kernel checks.
pub(crate) fn receive_into(fd: Fd, pieces: &[libc::iovec], flags: i32) -> Result<usize> {
    let message = message_of(pieces);
    call!(recvmsg, fd, &message as *const _ as usize, flags | libc::MSG_DONTWAIT)
}

/// Sends the program's memory, which the kernel checks. Never raises SIGPIPE.
pub(crate) fn send_from(fd: Fd, pieces: &[libc::iovec], flags: i32) -> Result<usize> {
    let message = message_of(pieces);
    actions::done(call!(sendmsg, fd, &message as *const _ as usize, flags | libc::MSG_NOSIGNAL))
}

pub(super) fn message_of(pieces: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: msghdr is plain data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    message.msg_iovlen = pieces.len();
    message
}

/// Takes at most `most` bytes off an anchor, without waiting.
pub(crate) fn discard(fd: Fd, most: usize) -> Result<usize> {
    call!(recvfrom, fd, 0, most, libc::MSG_TRUNC | libc::MSG_DONTWAIT, 0, 0)
}

/// send on an anchor. Never raises SIGPIPE.
pub fn send(fd: Fd, bytes: &[u8], flags: i32) -> Result<usize> {
    let flags = flags | libc::MSG_NOSIGNAL;
    actions::done(call!(sendto, fd, bytes.as_ptr() as usize, bytes.len(), flags, 0, 0))
}

/// sendmsg without waiting. Never raises SIGPIPE.
///
/// # Safety
/// The header's pointers are the program's.
pub unsafe fn send_message(fd: Fd, message: &libc::msghdr, flags: i32) -> Result<usize> {
    let flags = flags | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    actions::done(call!(sendmsg, fd, message as *const _ as usize, flags))
}

/// shutdown.
pub fn shutdown(fd: Fd, how: i32) -> Result<()> {
    actions::done(call!(shutdown, fd, how)).map(drop)
}

/// The first `N` 64-bit words of TCP_INFO. `None` if the kernel has fewer.
pub(super) fn information<const N: usize>(fd: Fd) -> Option<[u64; N]> {
    let mut words = [0u64; N];
    let mut length = size_of::<[u64; N]>() as u32;
    let (at, length_at) = (&mut words as *mut _ as usize, &mut length as *mut _ as usize);
    call!(getsockopt, fd, libc::IPPROTO_TCP, libc::TCP_INFO, at, length_at).ok()?;
    (length as usize == size_of::<[u64; N]>()).then_some(words)
}

/// Bytes that were ever given to a TCP socket to send. `None` where the kernel does not say (before 4.19).
pub(crate) fn bytes_written(fd: Fd) -> Option<u64> {
    information::<27>(fd).map(|words| written_by(&words))
}

/// The same by what the kernel tells, of which there are 27 words at least.
pub(super) fn written_by(words: &[u64]) -> u64 {
    // The low half of word 18 counts what is not sent yet, word 25 what was sent, and word 26 what was sent again.
    (words[25] + u64::from(words[18] as u32)).saturating_sub(words[26])
}

/// For how many bytes a TCP socket has room to send, at least. `None` where the kernel does not say (before 4.12).
pub(crate) fn room_to_send(fd: Fd) -> Option<u64> {
    const SO_MEMINFO: i32 = 55;
    let mut words = [0u32; 6];
    let mut length = size_of::<[u32; 6]>() as u32;
    let (at, length_at) = (&mut words as *mut _ as usize, &mut length as *mut _ as usize);
    call!(getsockopt, fd, libc::SOL_SOCKET, SO_MEMINFO, at, length_at).ok()?;
    let [_, _, _, most, _, queued] = words;
    let room = u64::from(most.saturating_sub(queued));
    // The kernel counts what it keeps of each packet as well.
    (length as usize == size_of::<[u32; 6]>()).then_some(room - room / 8)
}

/// Bytes that can be read from a TCP socket.
pub fn unread(fd: Fd) -> Option<u64> {
    let mut unread = 0i32;
    call!(ioctl, fd, libc::FIONREAD, &mut unread as *mut i32 as usize).ok()?;
    Some(unread.max(0) as u64)
}

/// True if the next byte to read from a TCP socket is an urgent one.
pub(crate) fn is_at_mark(fd: Fd) -> bool {
    let mut is_at_mark = 0i32;
    let asked = call!(ioctl, fd, SIOCATMARK, &mut is_at_mark as *mut i32 as usize);
    asked.is_ok() && is_at_mark != 0
}

/// ioctl: whether the next byte is the urgent mark (sockatmark).
pub const SIOCATMARK: u64 = 0x8905;

/// Values of tcpi_state at which the peer's FIN has come. The kernel counts it as a byte received.
const ENDED: [u64; 4] = [6, 8, 9, 11];
/// The value at which nobody knows whether it has come.
const CLOSED: u64 = 7;

/// True while neither end of a TCP connection has shut its direction down, as far as this kernel knows.
pub fn is_established(fd: Fd) -> bool {
    information::<1>(fd).is_some_and(|words| is_established_by(&words))
}

/// The same by what the kernel tells.
pub(super) fn is_established_by(words: &[u64]) -> bool {
    const ESTABLISHED: u64 = 1;
    words[0] & 0xff == ESTABLISHED
}

/// True if a TCP connection is over in both directions, or broken.
pub(crate) fn is_closed(fd: Fd) -> bool {
    information::<1>(fd).is_some_and(|words| words[0] & 0xff == CLOSED)
}

/// True if nothing more comes from the peer over a TCP connection. Whether this end has shut down does not matter.
pub(crate) fn is_ended_by_peer(fd: Fd) -> bool {
    let state = information::<1>(fd).map(|words| words[0] & 0xff);
    state.is_some_and(|state| state == CLOSED || ENDED.contains(&state))
}

/// What poll would tell of a TCP connection's end, by its state. A connection that is closed may have an error to ask for, and
/// is told to have. 0 for any other descriptor.
pub(super) fn end_as_polled(fd: Fd) -> i16 {
    const CLOSE_WAIT: u64 = 8;
    const ALL: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    match information::<1>(fd).map(|words| words[0] & 0xff) {
        Some(CLOSED) => ALL,
        Some(CLOSE_WAIT) => libc::POLLRDHUP,
        Some(state) if ENDED.contains(&state) => libc::POLLRDHUP | libc::POLLHUP,
        _ => 0,
    }
}

/// Bytes that ever came to a TCP socket, urgent ones too. `None` where the kernel does not say.
pub(crate) fn bytes_received(fd: Fd) -> Option<u64> {
    information::<17>(fd).map(|words| received_by(&words))
}

/// The same by what the kernel tells, of which there are 17 words at least.
pub(super) fn received_by(words: &[u64]) -> u64 {
    let end = u64::from(ENDED.contains(&(words[0] & 0xff)));
    words[16].saturating_sub(end)
}

/// Bytes that were ever taken out of a TCP socket. `None` where the kernel does not say.
pub(crate) fn bytes_taken(fd: Fd) -> Option<u64> {
    let received = || information::<17>(fd).map(|words| (words[0] & 0xff, words[16]));
    let mut seen = received()?;
    loop {
        let unread = unread(fd)?;
        let before = std::mem::replace(&mut seen, received()?);
        if seen == before {
            let (state, bytes) = seen;
            let end = u64::from(ENDED.contains(&state));
            return (state != CLOSED).then(|| bytes.saturating_sub(end + unread));
        }
    }
}

/// accept4 without the peer's address.
pub fn accept(fd: Fd, flags: i32) -> Result<Fd> {
    call!(accept4, fd, 0, 0, flags).map(|fd| fd as Fd)
}

/// socket.
pub fn socket(domain: i32, kind: i32, protocol: i32) -> Result<Fd> {
    call!(socket, domain, kind, protocol).map(|fd| fd as Fd)
}

/// An integer socket option.
pub fn option(fd: Fd, level: i32, name: i32) -> Result<i32> {
    let (mut value, mut length) = (0i32, size_of::<i32>() as u32);
    call!(
        getsockopt,
        fd,
        level,
        name,
        &mut value as *mut _ as usize,
        &mut length as *mut _ as usize
    )?;
    Ok(value)
}

/// The cookie of the network namespace that a socket is in (Linux 5.14).
pub(crate) fn namespace(fd: Fd) -> Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    long_option(fd, SO_NETNS_COOKIE)
}

/// The cookie of a socket: no other one ever has it.
pub(crate) fn cookie(fd: Fd) -> Result<u64> {
    long_option(fd, libc::SO_COOKIE)
}

fn long_option(fd: Fd, name: i32) -> Result<u64> {
    let (mut value, mut length) = (0u64, size_of::<u64>() as u32);
    call!(
        getsockopt,
        fd,
        libc::SOL_SOCKET,
        name,
        &mut value as *mut _ as usize,
        &mut length as *mut _ as usize
    )?;
    Ok(value)
}

/// The number of the interface that a socket is bound to. Zero if there is none, or before Linux 5.1.
pub(crate) fn bound_interface(fd: Fd) -> u32 {
    const SO_BINDTOIFINDEX: i32 = 62;
    option(fd, libc::SOL_SOCKET, SO_BINDTOIFINDEX).map_or(0, |interface| interface as u32)
}

/// The address that a connection was made to before the kernel translated it, as its connection tracking says.
/// `None` where that does not know the connection. May be asked of the end that accepted it.
///
/// # Errors
/// The kernel does not answer.
pub(crate) fn dialled_address(fd: Fd, is_ipv4: bool) -> Result<Option<SocketAddr>> {
    match original_destination(fd, is_ipv4) {
        // It tracks nothing, or not this one.
        Err(Errno(libc::ENOPROTOOPT | libc::ENOENT)) => Ok(None),
        said => said,
    }
}

fn original_destination(fd: Fd, is_ipv4: bool) -> Result<Option<SocketAddr>> {
    const ORIGINAL_DESTINATION: i32 = 80;
    let level = if is_ipv4 { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
    let (mut storage, mut length) = storage();
    let (at, length_at) = (storage.as_mut_ptr() as usize, &mut length as *mut _ as usize);
    call!(getsockopt, fd, level, ORIGINAL_DESTINATION, at, length_at)?;
    // SAFETY: the kernel filled `length` bytes.
    Ok(unsafe { address(storage.as_ptr().cast(), length) })
}

/// Whether the kernel may track connections, and so translate their addresses, as any TCP socket can tell.
pub(crate) fn may_track_connections(fd: Fd) -> bool {
    !matches!(original_destination(fd, true), Err(Errno(libc::ENOPROTOOPT)))
}

/// A number of the network namespace that new sockets of this thread are in. Not the [`namespace`] cookie.
pub(crate) fn current_namespace() -> Result<u64> {
    let fd = file::open_to_read(c"/proc/thread-self/ns/net")?;
    let identity = file::identity(fd);
    file::close(fd);
    identity.map(|(_, inode)| inode)
}

/// Sets a socket option of any plain type.
pub(crate) fn set_option<T: Copy>(fd: Fd, level: i32, name: i32, value: &T) -> Result<()> {
    call!(setsockopt, fd, level, name, value as *const T as usize, size_of::<T>()).map(drop)
}

/// True of a socket whose last close may wait (SO_LINGER).
pub(crate) fn lingers(fd: Fd) -> bool {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut length = size_of_val(&linger) as u32;
    let (at, length_at) = (&raw mut linger as usize, &raw mut length as usize);
    call!(getsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, at, length_at).is_ok()
        && linger.l_onoff != 0
        && linger.l_linger != 0
}

/// Lets the last close reset the connection.
pub(crate) fn reset_at_close(fd: Fd) -> Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

/// Undoes [`reset_at_close`], by whomever it was set.
pub(crate) fn close_in_order(fd: Fd) -> Result<()> {
    let linger = libc::linger { l_onoff: 0, l_linger: 0 };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

/// Resets the connection at once, and wakes all threads that sleep on it. A FIN would tell the peer that it has
/// everything.
pub fn reset(fd: Fd) {
    let nowhere =
        libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    let at = &nowhere as *const _ as usize;
    if call!(connect, fd, at, size_of::<libc::sockaddr>()).is_err() {
        let _ = reset_at_close(fd);
        let _ = shutdown(fd, libc::SHUT_RDWR);
    }
    // This made one.
    forget_error(fd);
}

/// Takes the pending error off a socket: it was told, or is not to be.
pub fn forget_error(fd: Fd) {
    let _ = option(fd, libc::SOL_SOCKET, libc::SO_ERROR);
}

/// SO_RCVTIMEO or SO_SNDTIMEO in nanoseconds. `None` waits for ever.
pub(crate) fn time_out(fd: Fd, name: i32) -> Option<u64> {
    let mut t = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of::<libc::timeval>() as u32;
    call!(
        getsockopt,
        fd,
        libc::SOL_SOCKET,
        name,
        &mut t as *mut _ as usize,
        &mut length as *mut _ as usize
    )
    .ok()?;
    let ns = t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
    (ns != 0).then_some(ns)
}

/// SO_LINGER: the time in seconds, if it is on.
pub fn linger(fd: Fd) -> Option<i32> {
    let mut l = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut length = size_of::<libc::linger>() as u32;
    call!(
        getsockopt,
        fd,
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        &mut l as *mut _ as usize,
        &mut length as *mut _ as usize
    )
    .ok()?;
    (l.l_onoff != 0).then_some(l.l_linger)
}

/// True if the program fixed the size of the send buffer (SO_SNDBUF). Otherwise the kernel adapts it. Asks SO_BUF_LOCK,
/// which Linux has from 5.14 on.
pub(crate) fn send_buffer_is_fixed(fd: Fd) -> bool {
    const SO_BUF_LOCK: i32 = 72;
    const SOCK_SNDBUF_LOCK: i32 = 1;
    option(fd, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0) & SOCK_SNDBUF_LOCK != 0
}

/// The local address of an IPv4 or IPv6 socket.
pub fn local_address(fd: Fd) -> Result<SocketAddr> {
    let (mut storage, mut length) = storage();
    call!(getsockname, fd, storage.as_mut_ptr() as usize, &mut length as *mut _ as usize)?;
    // SAFETY: the kernel filled `length` bytes.
    unsafe { address(storage.as_ptr().cast(), length) }.ok_or(Errno(libc::EAFNOSUPPORT))
}

/// The peer's address of a connected IPv4 or IPv6 socket.
pub fn peer_address(fd: Fd) -> Result<SocketAddr> {
    let (mut storage, mut length) = storage();
    call!(getpeername, fd, storage.as_mut_ptr() as usize, &mut length as *mut _ as usize)?;
    // SAFETY: the kernel filled `length` bytes.
    unsafe { address(storage.as_ptr().cast(), length) }.ok_or(Errno(libc::EAFNOSUPPORT))
}

fn storage() -> (MaybeUninit<libc::sockaddr_storage>, u32) {
    (MaybeUninit::zeroed(), size_of::<libc::sockaddr_storage>() as u32)
}

/// A program's sockaddr as an address. `None` if it is neither IPv4 nor IPv6, or is too short.
///
/// # Safety
/// `at` is null or points to `length` readable bytes.
pub unsafe fn address(at: *const libc::sockaddr, length: u32) -> Option<SocketAddr> {
    if at.is_null() || (length as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: at least the family is readable; unaligned reads are allowed for.
    let family = unsafe { at.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if length as usize >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the length was checked.
            let a = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(a.sin_port)))
        }
        libc::AF_INET6 if length as usize >= size_of::<libc::sockaddr_in6>() - 4 => {
            let mut copy = MaybeUninit::<libc::sockaddr_in6>::zeroed();
            let n = (length as usize).min(size_of::<libc::sockaddr_in6>());
            // SAFETY: `n` bytes are readable at `at` and writable in `copy`; zeroes fill the rest.
            let a = unsafe {
                std::ptr::copy_nonoverlapping(at.cast::<u8>(), copy.as_mut_ptr().cast(), n);
                copy.assume_init()
            };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(a.sin6_port)))
        }
        _ => None,
    }
}

/// What a program gives connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An IPv4 or IPv6 address.
    Address(SocketAddr),
    /// AF_UNSPEC, which dissolves the connection.
    Nothing,
    /// Something else, which the kernel judges.
    Other,
}

/// Reads what a program gives connect.
///
/// # Safety
/// `at` points to `length` readable bytes.
pub unsafe fn target(at: *const libc::sockaddr, length: u32) -> Target {
    // SAFETY: the caller's promise.
    match unsafe { address(at, length) } {
        Some(address) => Target::Address(address),
        None if length as usize >= size_of::<libc::sa_family_t>()
            // SAFETY: the family is readable.
            && i32::from(unsafe { at.cast::<libc::sa_family_t>().read_unaligned() })
                == libc::AF_UNSPEC =>
        {
            Target::Nothing
        }
        None => Target::Other,
    }
}

/// The address as IPv4 if it is IPv4-mapped.
pub(crate) fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// True if the address belongs to this network namespace. Only then one can bind to it.
pub(crate) fn is_local(ip: IpAddr) -> bool {
    if ip.is_loopback() {
        return true;
    }
    let domain = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let Ok(fd) = socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) else { return false };
    let local = bind(fd, ip).is_ok();
    super::file::close(fd);
    local
}

/// Binds a socket of the address's family to it, and to a port that is free.
pub fn bind(fd: Fd, ip: IpAddr) -> Result<()> {
    let bound = match ip {
        IpAddr::V4(ip) => {
            // SAFETY: sockaddr_in is plain data.
            let mut a: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            a.sin_family = libc::AF_INET as u16;
            a.sin_addr.s_addr = u32::from(ip).to_be();
            call!(bind, fd, &a as *const _ as usize, size_of::<libc::sockaddr_in>())
        }
        IpAddr::V6(ip) => {
            // SAFETY: sockaddr_in6 is plain data.
            let mut a: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            a.sin6_family = libc::AF_INET6 as u16;
            a.sin6_addr.s6_addr = ip.octets();
            call!(bind, fd, &a as *const _ as usize, size_of::<libc::sockaddr_in6>())
        }
    };
    bound.map(drop)
}

/// Makes a TCP connection between two addresses of this host. Gives both ends, that of `ours` first. Close-on-exec.
pub fn pair(ours: IpAddr, theirs: IpAddr) -> Result<[Fd; 2]> {
    let bound = |ip: IpAddr| {
        let domain = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let fd = socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
        bind(fd, ip).map(|()| fd).inspect_err(|_| super::file::close(fd))
    };
    let listener = bound(ours)?;
    let ends = bound(theirs).and_then(|connector| {
        let accepted = meet(listener, connector);
        accepted.map(|fd| [fd, connector]).inspect_err(|_| super::file::close(connector))
    });
    super::file::close(listener);
    ends
}

/// Connects the connector to the listener, and gives what the listener accepted.
fn meet(listener: Fd, connector: Fd) -> Result<Fd> {
    call!(listen, listener, 1)?;
    let (mut storage, mut length) = storage();
    call!(getsockname, listener, storage.as_mut_ptr() as usize, &mut length as *mut _ as usize)?;
    call!(connect, connector, storage.as_ptr() as usize, length)?;
    loop {
        let accepted = accept(listener, libc::SOCK_CLOEXEC)?;
        if peer_address(accepted) == local_address(connector) {
            return Ok(accepted);
        }
        // Another process connected to the listener.
        super::file::close(accepted);
    }
}

/// listen.
pub fn listen(fd: Fd, backlog: i32) -> Result<()> {
    call!(listen, fd, backlog).map(drop)
}

/// Two Unix stream sockets that are connected to each other. They do not block, and are close-on-exec.
pub(crate) fn stream_pair() -> Result<[Fd; 2]> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut fds = [0; 2];
    call!(socketpair, libc::AF_UNIX, kind, 0, fds.as_mut_ptr() as usize)?;
    Ok(fds)
}

/// connect to an IPv4 or IPv6 address.
pub fn connect(fd: Fd, to: &libc::sockaddr_storage) -> Result<()> {
    let length = size_of::<libc::sockaddr_storage>();
    call!(connect, fd, to as *const _ as usize, length).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_be_in_another_namespace() {
        let here = current_namespace().unwrap();
        let there = std::thread::spawn(|| {
            // SAFETY: it concerns this thread.
            let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
            (moved, current_namespace().unwrap())
        });
        let (moved, there) = there.join().unwrap();
        assert_eq!(here == there, !moved);
        assert_eq!(here, current_namespace().unwrap());
    }
}
