//! Socket options of the anchor: what the SAN wants of them while a connection is there, and what the program set
//! before and gets back after. Which options these are by name: `descriptors/options`.

use crate::provider::shm::ABORTIVE;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use crate::sys::{net, Fd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Least send buffer (bytes) a program can ask for; what the kernel's own minimum comes to.
const LEAST_SEND_BUFFER: u32 = 4608;

pub(in crate::switch) fn fix_send_buffer(stream: &Stream, size: i32) {
    let most = stream.segment.geometry().send_buffer;
    let size = (size.max(0) as u32).max(LEAST_SEND_BUFFER).min(most);
    stream.endpoint.send.fixed.store(size, Relaxed);
    stream.publish_transfers();
}

/// A doorbell must not wait: not for the acknowledgement of an earlier one, and not for more.
pub(in crate::switch) fn note_tcp(socket: &Socket, stream: &Stream, name: i32, on: bool) {
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
pub(crate) fn give_back_sending(stream: &Stream, anchor: Fd) {
    for (name, bit) in [(libc::TCP_NODELAY, flag::NODELAY), (libc::TCP_CORK, flag::CORK)] {
        let value = i32::from(stream.endpoint.has(bit));
        let _ = net::set_option(anchor, libc::IPPROTO_TCP, name, &value);
    }
}

/// This end receives over TCP again: the anchor gets what the program set.
pub(crate) fn give_back_receiving(stream: &Stream, anchor: Fd) {
    let low_water = stream.endpoint.receive.low_water.load(Relaxed) as i32;
    let _ = net::set_option(anchor, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &low_water);
    give_back_urgent(stream, anchor);
}

/// Urgent bytes on the anchor are TCP's again.
pub(crate) fn give_back_urgent(stream: &Stream, anchor: Fd) {
    let inline = i32::from(stream.endpoint.has(flag::URGENT_INLINE));
    let _ = net::set_option(anchor, libc::SOL_SOCKET, libc::SO_OOBINLINE, &inline);
}

/// The anchor's own low-water mark must stay at one: a doorbell is one byte.
pub(in crate::switch) fn note_low_water(socket: &Socket, stream: &Stream, value: i32) {
    stream.endpoint.receive.low_water.store(value.max(1) as u32, Relaxed);
    if value > 1 {
        let _ = net::set_option(socket.anchor(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1i32);
    }
}

pub(in crate::switch) fn note_urgent_inline(socket: &Socket, stream: &Stream, on: bool) {
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

pub(in crate::switch) fn note_linger(stream: &Stream, abortive: bool) {
    let finished = &stream.own().sending.0.finished;
    if abortive {
        finished.fetch_or(ABORTIVE, SeqCst);
    } else {
        finished.fetch_and(!ABORTIVE, SeqCst);
    }
}

/// True if an option is in force that the SAN can not honour.
pub(crate) fn unsupported(socket: &Socket) -> bool {
    if !socket.has_options.load(Relaxed) {
        return false;
    }
    let fd = socket.anchor();
    let value = |name| net::option(fd, libc::SOL_SOCKET, name);
    value(libc::SO_PEEK_OFF).unwrap_or(-1) >= 0
        || value(libc::SO_TIMESTAMPING).is_ok_and(reports_what_is_sent)
}

/// True of a value of SO_TIMESTAMPING with which the kernel tells in the error queue when it sent what.
pub(in crate::switch) fn reports_what_is_sent(timestamping: i32) -> bool {
    const SENT: u32 = libc::SOF_TIMESTAMPING_TX_HARDWARE
        | libc::SOF_TIMESTAMPING_TX_SOFTWARE
        | libc::SOF_TIMESTAMPING_TX_SCHED
        | libc::SOF_TIMESTAMPING_TX_ACK;
    timestamping as u32 & SENT != 0
}

/// Options set before the connection was on the SAN.
pub(crate) fn inherit(socket: &Socket) {
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
