//! What poll and epoll say of a SAN socket.

use super::endpoint::flag;
use super::lanes;
use super::socket::Socket;
use super::stream::{Broken, Stream};
use super::wait;
use crate::sys::poll;
use std::sync::atomic::Ordering::Relaxed;

/// Readiness bits; poll's and epoll's are the same.
pub(super) mod bit {
    /// Data to read.
    pub(crate) const IN: u32 = libc::EPOLLIN as u32;
    /// Urgent data.
    pub(crate) const PRI: u32 = libc::EPOLLPRI as u32;
    /// Space to write.
    pub(crate) const OUT: u32 = libc::EPOLLOUT as u32;
    /// Error; always reported.
    pub(crate) const ERR: u32 = libc::EPOLLERR as u32;
    /// Both directions ended; always reported.
    pub(crate) const HUP: u32 = libc::EPOLLHUP as u32;
    /// The peer sends no more.
    pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
    /// Data to read, by its other name.
    pub(crate) const RDNORM: u32 = libc::EPOLLRDNORM as u32;
    /// Space to write, by its other name.
    pub(crate) const WRNORM: u32 = libc::EPOLLWRNORM as u32;
    /// What is reported without being asked for.
    pub(crate) const ALWAYS: u32 = ERR | HUP;
    /// Any wish to read.
    pub(crate) const ANY_IN: u32 = IN | RDNORM | RDHUP;
    /// Any wish to write.
    pub(crate) const ANY_OUT: u32 = OUT | WRNORM;
}

/// [`of`] for a socket, after a look at its anchor if the peer hinted that it closed.
#[inline]
pub(super) fn of_socket(socket: &Socket, interest: u32) -> u32 {
    let Some(stream) = socket.stream() else { return 0 };
    if wait::hinted_end(&stream) && !socket.is_pending() {
        wait::look(socket, &stream);
    }
    let mut ready = of(&stream, interest);
    if stream.endpoint.has(flag::LEFT) && interest & bit::ANY_OUT != 0 {
        let writable = poll::poll_one(socket.anchor(), libc::POLLOUT) == Ok(libc::POLLOUT);
        ready |= if writable { interest & bit::ANY_OUT } else { 0 };
    }
    ready
}

/// The readiness among `interest` (and what is always reported) at this moment.
#[inline]
pub(super) fn of(stream: &Stream, interest: u32) -> u32 {
    let e = stream.endpoint;
    let mut mask = 0;
    // Asked before the data, so that an end never hides data that came before it.
    let ended = wait::ended(stream) || e.has(flag::RECEIVE_SHUT);
    if ended {
        mask |= bit::IN | bit::RDNORM | bit::RDHUP;
        if e.has(flag::SEND_SHUT) {
            mask |= bit::HUP;
        }
        if e.has(flag::RESET | flag::BROKEN_PIPE) {
            mask |= bit::HUP;
            if !e.has(flag::ERROR_REPORTED) {
                mask |= bit::ERR;
            }
        }
    }
    if interest & bit::ANY_IN != 0 && mask & bit::IN == 0 && enough_to_read(stream) {
        mask |= bit::IN | bit::RDNORM;
    }
    if interest & bit::ANY_OUT != 0 && wait::writable(stream) && !stream.is_kept_from_sending() {
        mask |= bit::OUT | bit::WRNORM;
    }
    if interest & bit::PRI != 0 && stream.is_urgent() {
        mask |= bit::PRI;
    }
    mask & (interest | bit::ALWAYS)
}

#[inline]
fn enough_to_read(stream: &Stream) -> bool {
    if !wait::readable(stream) {
        return false;
    }
    let low_water = u64::from(stream.endpoint.receive.low_water.load(Relaxed));
    // A sender without space can not send what is missing.
    low_water <= 1
        || counted(stream, |stream| stream.unread()) >= low_water
        || stream.peer().sending.0.stalled.load(Relaxed) != 0
}

/// Bytes to read (FIONREAD).
pub(super) fn available(stream: &Stream) -> u64 {
    counted(stream, |stream| stream.before_urgent())
}

fn counted(stream: &Stream, count: impl Fn(&Stream) -> Result<u64, Broken>) -> u64 {
    match stream.lock_receive() {
        Ok(_held) if stream.endpoint.has(flag::RECEIVES_TCP) => {
            let before = lanes::unread(stream);
            if stream.endpoint.has(flag::RECEIVES_TCP) {
                return before;
            }
            count(stream).unwrap_or(0)
        }
        Ok(_held) => {
            let bytes = count(stream).unwrap_or(0);
            stream.note_seen(bytes);
            bytes
        }
        Err(_) => 0,
    }
}

/// Brings a socket's view of its anchor up to date with what the kernel reported.
pub(super) fn note_kernel_events(socket: &Socket, events: u32) {
    if events & (bit::RDHUP | bit::HUP | bit::ERR) != 0 || socket.is_pending() {
        if let Some(stream) = socket.stream() {
            wait::look(socket, &stream);
        }
    }
}
