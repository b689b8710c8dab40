//! Receives' buffers lent to the sender for RDMA write: nothing is written to them any more when the call that posted
//! them returns, is cancelled, or is left by a jump out of a signal handler.

use super::holding::take_back;
use super::holding::Hold;
use super::Stream;
use crate::switch::endpoint::flag;

/// The posted buffer is not lent any more. The bytes that were written to it, of `length`.
pub(super) fn deregister(stream: &Stream, length: u32) -> u32 {
    stream.endpoint.due.forget_advertisement();
    take_back(&stream.own().writable.0, length)
}

/// A receive's buffer, lent to the sender for RDMA write; dropped, it is the program's alone again.
pub(crate) struct Posted<'a> {
    stream: Stream<'a>,
    length: u32,
    /// [`Suspension::stamp`](crate::session::Suspension::stamp) when it was posted.
    session: u32,
    taken_back: bool,
    _hold: Hold<'a>,
}

impl<'a> Posted<'a> {
    /// Of `length` bytes, advertised just now. Receive lock.
    pub(super) fn new(stream: Stream<'a>, hold: Hold<'a>, length: u32) -> Self {
        let session = stream.endpoint.suspension.stamp();
        Posted { stream, length, session, taken_back: false, _hold: hold }
    }

    /// True if the sender wrote to it, or it was taken back because the session is suspended (D4).
    pub(crate) fn is_over(&self) -> bool {
        let (registration, suspension) =
            (&self.stream.own().writable.0, &self.stream.endpoint.suspension);
        registration.done() > 0 || (suspension.stamp() != self.session && !suspension.holds_back())
    }

    /// Takes the buffer back; the bytes that were written to it count as received.
    pub(crate) fn take_back(mut self) -> usize {
        self.withdraw()
    }

    fn withdraw(&mut self) -> usize {
        if std::mem::replace(&mut self.taken_back, true) {
            return 0;
        }
        let stream = &self.stream;
        let bytes = deregister(stream, self.length);
        let held = stream.lock_receive();
        if bytes > 0 && !stream.endpoint.has(flag::READ_OUT) {
            // What was announced before those bytes were written is over (A12), so it must be known.
            // What is broken is found again.
            let _ = stream.absorb();
        }
        stream.withdrawn(bytes);
        drop(held);
        bytes as usize
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}
