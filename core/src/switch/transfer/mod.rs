//! Sending and receiving, with TCP's rules for flags, waiting and errors.

pub mod files;
mod from_tcp;
mod rdma;
mod receive;
mod send;
pub mod shutdown;
mod suspend;
#[cfg(test)]
mod tests;
mod turn;
mod urgent;

use crate::switch::anchor::ready;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::{self, Event};
use crate::switch::stream::Stream;
use crate::switch::waiting::ring;
use crate::sys::Errno;

pub use receive::{read, receive};
pub use send::send;
use send::{send_from, unable};

/// The error of a broken connection, told once; afterwards `then`.
fn reset_error(stream: &Stream, then: Result<usize, Errno>) -> Result<usize, Errno> {
    if stream.endpoint.set(flag::ERROR_REPORTED) {
        return Err(stream.endpoint.broken_by());
    }
    then
}

/// With O_ASYNC, when a call is done: from now on the next event reaches the anchor, where the kernel raises the signal.
/// True if one did not have to.
fn happened_before(socket: &Socket, stream: &Stream, event: Event) -> bool {
    if !ready::readable(stream) {
        ring::drain(socket, stream, || false);
    }
    let _ = counters::raise_elsewhere(stream, event);
    match event {
        Event::Read => ready::readable(stream),
        Event::Write => ready::writable(stream),
    }
}
