//! Socket options and ioctls that the SAN has to honour itself; all others are the kernel's.

use super::detach::WaitForRoom;
use super::endpoint::flag;
use super::exec;
use super::lanes;
use super::readiness;
use super::setup;
use super::socket::{phase, Socket};
use super::stream::Stream;
use super::table;
use super::wait;
use crate::provider::shm::ABORTIVE;
use crate::reason::Reason;
use crate::sys::{net, time, Errno, Fd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Least send buffer (bytes) a program can ask for; what the kernel's own minimum comes to.
const LEAST_SEND_BUFFER: u32 = 4608;

/// After setsockopt succeeded in the kernel: an option with an integer value.
pub fn was_set(fd: Fd, level: i32, name: i32, value: i32) {
    let Some(socket) = table::socket(fd) else { return };
    if is_ours(level, name) {
        socket.has_options.store(true, Relaxed);
    }
    let Some(stream) = socket.stream() else { return };
    if level == libc::IPPROTO_TCP {
        return note_tcp(&socket, &stream, name, value != 0);
    }
    if level != libc::SOL_SOCKET {
        return;
    }
    match name {
        libc::SO_SNDBUF | libc::SO_SNDBUFFORCE => {
            // The kernel doubles the value for its own overhead, and so do we.
            fix_send_buffer(&stream, value.saturating_mul(2));
        }
        libc::SO_RCVLOWAT => note_low_water(&socket, &stream, value),
        libc::SO_OOBINLINE => note_urgent_inline(&socket, &stream, value != 0),
        _ => {}
    }
}

fn fix_send_buffer(stream: &Stream, size: i32) {
    let most = stream.segment.geometry().send_buffer;
    let size = (size.max(0) as u32).max(LEAST_SEND_BUFFER).min(most);
    stream.endpoint.send.fixed.store(size, Relaxed);
    stream.publish_transfers();
}

/// After SO_LINGER was set: a zero time makes the last close a reset.
pub fn linger_was_set(fd: Fd, on: bool, seconds: i32) {
    let Some(socket) = table::socket(fd) else { return };
    socket.has_options.store(true, Relaxed);
    if let Some(stream) = socket.stream() {
        note_linger(&stream, on && seconds == 0);
    }
}

/// Options that [`inherit`] and [`unsupported`] would ask the kernel for.
fn is_ours(level: i32, name: i32) -> bool {
    match level {
        libc::IPPROTO_TCP => matches!(name, libc::TCP_NODELAY | libc::TCP_CORK),
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_SNDBUF
                | libc::SO_SNDBUFFORCE
                | libc::SO_RCVLOWAT
                | libc::SO_OOBINLINE
                | libc::SO_ZEROCOPY
                | libc::SO_PEEK_OFF
        ),
        _ => false,
    }
}

/// A doorbell must not wait: not for the acknowledgement of an earlier one, and not for more.
fn note_tcp(socket: &Socket, stream: &Stream, name: i32, on: bool) {
    let (flag, wanted) = match name {
        libc::TCP_NODELAY => (flag::NODELAY, 1i32),
        libc::TCP_CORK => (flag::CORK, 0i32),
        _ => return,
    };
    if on {
        stream.endpoint.set(flag);
    } else {
        stream.endpoint.clear(flag);
    }
    if stream.endpoint.has(flag::LEFT) {
        return;
    }
    if i32::from(on) != wanted {
        let _ = net::set_option(socket.anchor(), libc::IPPROTO_TCP, name, &wanted);
    }
}

/// This end sends over TCP again: the anchor gets what the program set.
pub fn give_back_sending(stream: &Stream, anchor: Fd) {
    for (name, bit) in [(libc::TCP_NODELAY, flag::NODELAY), (libc::TCP_CORK, flag::CORK)] {
        let value = i32::from(stream.endpoint.has(bit));
        let _ = net::set_option(anchor, libc::IPPROTO_TCP, name, &value);
    }
}

/// This end receives over TCP again: the anchor gets what the program set.
pub fn give_back_receiving(stream: &Stream, anchor: Fd) {
    let low_water = stream.endpoint.receive.low_water.load(Relaxed) as i32;
    let _ = net::set_option(anchor, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &low_water);
    give_back_urgent(stream, anchor);
}

/// Urgent bytes on the anchor are TCP's again.
pub fn give_back_urgent(stream: &Stream, anchor: Fd) {
    let inline = i32::from(stream.endpoint.has(flag::URGENT_INLINE));
    let _ = net::set_option(anchor, libc::SOL_SOCKET, libc::SO_OOBINLINE, &inline);
}

/// The anchor's own low-water mark must stay at one: a doorbell is one byte.
fn note_low_water(socket: &Socket, stream: &Stream, value: i32) {
    stream.endpoint.receive.low_water.store(value.max(1) as u32, Relaxed);
    if value > 1 {
        let _ = net::set_option(socket.anchor(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1i32);
    }
}

fn note_urgent_inline(socket: &Socket, stream: &Stream, on: bool) {
    if on {
        stream.endpoint.set(flag::URGENT_INLINE);
    } else {
        stream.endpoint.clear(flag::URGENT_INLINE);
    }
    if on && stream.fabric.is_some() {
        // The byte is taken off the anchor out of line there.
        let _ = net::set_option(socket.anchor(), libc::SOL_SOCKET, libc::SO_OOBINLINE, &0i32);
    }
}

fn note_linger(stream: &Stream, abortive: bool) {
    let finished = &stream.own().sending.0.finished;
    if abortive {
        finished.fetch_or(ABORTIVE, SeqCst);
    } else {
        finished.fetch_and(!ABORTIVE, SeqCst);
    }
}

/// True if an option is in force that the SAN can not honour.
pub fn unsupported(socket: &Socket) -> bool {
    if !socket.has_options.load(Relaxed) {
        return false;
    }
    let fd = socket.anchor();
    net::option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY).unwrap_or(0) != 0
        || net::option(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF).unwrap_or(-1) >= 0
}

/// Options set before the connection was on the SAN.
pub fn inherit(socket: &Socket) {
    let fd = socket.anchor();
    let Some(stream) = socket.stream() else { return };
    if !socket.has_options.load(Relaxed) {
        return note_tcp(socket, &stream, libc::TCP_NODELAY, false);
    }
    for name in [libc::TCP_NODELAY, libc::TCP_CORK] {
        let on = net::option(fd, libc::IPPROTO_TCP, name).unwrap_or(0) != 0;
        note_tcp(socket, &stream, name, on);
    }
    let low_water = net::option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
    note_low_water(socket, &stream, low_water);
    if net::option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE) == Ok(1) {
        note_urgent_inline(socket, &stream, true);
    }
    if net::linger(fd) == Some(0) {
        note_linger(&stream, true);
    }
    // Only a size the program fixed counts; the kernel's own default adapts, as ours does.
    if net::send_buffer_is_fixed(fd) {
        let size = net::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
        fix_send_buffer(&stream, size);
    }
}

/// SO_ERROR of a SAN socket, told once; `None`: the kernel's answer stands.
pub fn error(fd: Fd) -> Option<i32> {
    if let Some(socket) = super::connecting(fd) {
        drop(socket);
        return None;
    }
    let socket = table::san(fd)?;
    wait::look(&socket, &socket.stream()?);
    take_error(&socket).map(|e| e.0)
}

/// The error of a broken connection, as far as that was noticed, told once.
pub fn take_error(socket: &Socket) -> Option<Errno> {
    let e = broken_by(socket)?;
    socket.stream()?.endpoint.set(flag::ERROR_REPORTED).then_some(e)
}

/// What a call was told and can not report: the next one does, as in the kernel.
pub fn put_error_back(socket: &Socket, e: Errno) {
    if broken_by(socket) == Some(e) {
        if let Some(stream) = socket.stream() {
            stream.endpoint.clear(flag::ERROR_REPORTED);
        }
    }
}

/// Why a connection is broken, told or not.
fn broken_by(socket: &Socket) -> Option<Errno> {
    let stream = socket.stream()?;
    let is_broken = stream.endpoint.has(flag::RESET | flag::BROKEN_PIPE);
    is_broken.then(|| stream.endpoint.broken_by())
}

/// Options whose value the kernel does not know for a SAN socket: the value, if it is one.
pub fn value(fd: Fd, level: i32, name: i32) -> Option<i32> {
    let socket = table::san(fd)?;
    let stream = socket.stream()?;
    if level == libc::IPPROTO_TCP {
        return match name {
            libc::TCP_NODELAY => Some(i32::from(stream.endpoint.has(flag::NODELAY))),
            libc::TCP_CORK => Some(i32::from(stream.endpoint.has(flag::CORK))),
            _ => None,
        };
    }
    if level != libc::SOL_SOCKET {
        return None;
    }
    match name {
        libc::SO_RCVLOWAT => Some(stream.endpoint.receive.low_water.load(Relaxed) as i32),
        libc::SO_OOBINLINE => Some(i32::from(stream.endpoint.has(flag::URGENT_INLINE))),
        _ => None,
    }
}

/// The TCP state (tcpi_state) of a connection whose half-closes the kernel did not see; `None`:
/// the kernel's stands.
pub fn tcp_state(fd: Fd) -> Option<u8> {
    const FIN_WAIT2: u8 = 5;
    const CLOSE_WAIT: u8 = 8;
    const CLOSE: u8 = 7;
    let socket = table::san(fd)?;
    let stream = socket.stream()?;
    match (wait::ended(&stream), stream.endpoint.has(flag::SEND_SHUT)) {
        (false, false) => None,
        (true, false) => Some(CLOSE_WAIT),
        (false, true) => Some(FIN_WAIT2),
        (true, true) => Some(CLOSE),
    }
}

/// True once a SAN connection is over in both directions, or broken: the kernel's socket, which does not know of it, still
/// has a peer then, where TCP's has none.
pub fn has_no_peer(fd: Fd) -> bool {
    const CLOSE: u8 = 7;
    let Some(socket) = table::san(fd) else { return false };
    let Some(stream) = socket.stream() else { return false };
    wait::look(&socket, &stream);
    broken_by(&socket).is_some() || tcp_state(fd) == Some(CLOSE)
}

/// Before an option is set that the SAN can not honour: the errno that says so.
pub fn refuses(fd: Fd, level: i32, name: i32, value: i32) -> Option<Errno> {
    // Completions of zero-copy sends would never come, and the kernel's peek offset counts the
    // anchor's bytes.
    let unsupported =
        (name == libc::SO_ZEROCOPY && value != 0) || (name == libc::SO_PEEK_OFF && value >= 0);
    if level == libc::SOL_SOCKET && unsupported {
        return table::san(fd).map(|_| Errno(libc::EOPNOTSUPP));
    }
    if level == libc::IPPROTO_TCP && name == libc::TCP_ULP {
        let socket = table::socket(fd)?;
        setup::stay_on_tcp(&socket);
        // As where the kernel has no TLS: programs encrypt themselves then.
        return (socket.phase() == phase::SAN).then_some(Errno(libc::ENOENT));
    }
    None
}

/// ioctl requests with an integer result.
pub fn ioctl(fd: Fd, request: u64) -> Option<i32> {
    let socket = table::san(fd).or_else(|| super::connecting(fd))?;
    let stream = socket.stream()?;
    let clamp = |bytes: u64| bytes.min(i32::MAX as u64) as i32;
    match request {
        libc::FIONREAD => {
            wait::look_if_stale(&socket, &stream, time::ticks());
            Some(clamp(readiness::available(&stream)))
        }
        libc::TIOCOUTQ if stream.endpoint.has(flag::SENDS_TCP) => None,
        libc::TIOCOUTQ => {
            wait::look(&socket, &stream);
            Some(clamp(stream.unsent()))
        }
        SIOCATMARK if lanes::receives_all_over_tcp(&stream) => None,
        SIOCATMARK => Some(i32::from(stream.mark_at(0).is_some())),
        _ => None,
    }
}

/// Whether the next byte is the urgent mark (sockatmark).
pub const SIOCATMARK: u64 = 0x8905;

/// The open file description's flags changed, as far as they matter to us.
pub fn status_flags_changed(fd: Fd, nonblocking: Option<bool>, asynchronous: Option<bool>) {
    let Some(socket) = table::socket(fd) else { return };
    let Some(stream) = socket.stream() else { return };
    let apply = |bit: u32, on: Option<bool>| match on {
        Some(true) => {
            stream.endpoint.set(bit);
        }
        Some(false) => {
            stream.endpoint.clear(bit);
        }
        None => {}
    };
    apply(flag::NONBLOCK, nonblocking);
    apply(flag::ASYNC, asynchronous);
    if asynchronous == Some(true) && stream.fabric.is_some() {
        // The kernel sees nothing of what comes over a fabric, and raises no signal for it.
        exec::pass_because(&[fd], Reason::UnsupportedOption, WaitForRoom::Moment);
    } else if asynchronous == Some(true) {
        // From now on every event has to reach the anchor.
        let _ = wait::raise_elsewhere(&stream, wait::Event::Read);
    }
}
