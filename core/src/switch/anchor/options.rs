//! Socket options that the SAN honours itself. The anchor keeps what the program set.
//! [`option_table`](crate::switch::option_table) says which options these are.

use crate::switch::anchor::user_timeout;
use crate::switch::option_table::{SocketOption, OPTIONS, SO_MAX_PACING_RATE};
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use crate::sys::{net, Fd};
use std::sync::atomic::Ordering::Relaxed;

/// Least send buffer (bytes) a program can ask for; what the kernel's own minimum comes to.
const LEAST_SEND_BUFFER: u32 = 4608;
/// How much TCP lets a peer have unread from the start. The send buffer stands for the peer's receive buffer as well.
const AT_PEER: u32 = 64 << 10;

/// The value of SO_MAX_PACING_RATE that sets no rate.
const NO_RATE: u32 = u32::MAX;

pub(in crate::switch) fn fix_send_buffer(stream: &Stream, size: i32) {
    let most = stream.segment.geometry().send_buffer;
    let size = (size.max(0) as u32).max(LEAST_SEND_BUFFER).saturating_add(AT_PEER).min(most);
    stream.endpoint.send.fixed.store(size, Relaxed);
    stream.publish_transfers();
}

pub(in crate::switch) fn note_low_water(stream: &Stream, value: i32) {
    stream.endpoint.receive.low_water.store(value.max(1) as u32, Relaxed);
}

/// Gives another socket the options that shape how bytes are sent and read.
pub(in crate::switch) fn copy(from: Fd, to: Fd) {
    for SocketOption { level, name, .. } in OPTIONS.into_iter().filter(|one| one.is_copied()) {
        if let Ok(value) = net::option(from, level, name) {
            let _ = net::set_option(to, level, name, &value);
        }
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
        || value(SO_MAX_PACING_RATE).is_ok_and(|rate| rate as u32 != NO_RATE)
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
    let Some(stream) = socket.stream().filter(|_| socket.has_options.load(Relaxed)) else { return };
    let low_water = net::option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
    note_low_water(&stream, low_water);
    let time_out = net::option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT).unwrap_or(0);
    user_timeout::set(&stream, time_out);
    // Only a size the program fixed counts; the kernel's own default adapts, as ours does.
    if net::send_buffer_is_fixed(fd) {
        let size = net::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
        fix_send_buffer(&stream, size);
    }
}
