//! Receives' buffers lent to the sender for RDMA write: nothing is written to them any more when the call that posted
//! them returns, is cancelled, or is left by a jump out of a signal handler.

use super::Stream;
use crate::provider::shm::Registration;
use crate::switch::endpoint::{flag, Endpoint};
use crate::sys::jump::Jump;
use crate::sys::lock::NOBODY;
use crate::sys::{process, time};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

/// Buffers that a thread can have posted: a call's, and those of calls in signal handlers.
const MOST: usize = 4;

/// A buffer that the calling thread has posted, or is about to.
#[derive(Clone, Copy)]
struct Entry {
    /// Where a frame of the call lies that did.
    stack: usize,
    endpoint: *const Endpoint,
    registration: *const Registration,
}

thread_local! {
    static POSTED: [Cell<Option<Entry>>; MOST] = const { [const { Cell::new(None) }; MOST] };
}

/// An entry of the calling thread's list until it is dropped.
pub(super) struct Place(usize);

impl Place {
    /// Before a buffer of the stream's end is lent. `None`: there are too many.
    pub(super) fn enter(stream: &Stream) -> Option<Place> {
        let here = 0u8;
        let entry = Entry {
            stack: &raw const here as usize,
            endpoint: stream.endpoint,
            registration: &raw const stream.own().writable.0,
        };
        POSTED.with(|posted| {
            let free = posted.iter().position(|place| place.get().is_none())?;
            posted[free].set(Some(entry));
            Some(Place(free))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        POSTED.with(|posted| posted[self.0].set(None));
    }
}

/// Before the calling thread jumps out of a signal handler: takes back what calls posted that will never return. What
/// had been written counts as received when somebody next receives.
pub fn before_jump(jump: &Jump) {
    POSTED.with(|posted| {
        for place in posted {
            let Some(entry) = place.get().filter(|entry| jump.passes(entry.stack)) else {
                continue;
            };
            // SAFETY: the frame that keeps both alive is still there.
            let (endpoint, registration) = unsafe { (&*entry.endpoint, &*entry.registration) };
            // Else it is taken back already, and the buffer that is lent now another thread's.
            if endpoint.receive.poster.load(Relaxed) == process::tid() {
                endpoint.due.forget_advertisement();
                take_back(registration, 0);
                endpoint.receive.poster.store(NOBODY, Relaxed);
            }
            place.set(None);
        }
    });
}

/// The posted buffer is not lent any more. The bytes that were written to it, of `length`.
pub(super) fn deregister(stream: &Stream, length: u32) -> u32 {
    stream.endpoint.due.forget_advertisement();
    take_back(&stream.own().writable.0, length)
}

fn take_back(registration: &Registration, length: u32) -> u32 {
    loop {
        match registration.deregister(length) {
            Ok(bytes) => return bytes,
            Err(_) => {
                // A copy that is under way ends by itself, unless its thread died in it.
                process::yield_now();
                time::sleep(10_000);
                registration.end_write_of_the_dead();
            }
        }
    }
}

/// A receive's buffer, lent to the sender for RDMA write; dropped, it is the program's alone again.
pub struct Posted<'a> {
    stream: Stream<'a>,
    length: u32,
    /// [`Suspension::stamp`](crate::session::Suspension::stamp) when it was posted.
    session: u32,
    taken_back: bool,
    _place: Place,
}

impl<'a> Posted<'a> {
    /// Of `length` bytes, advertised just now. Receive lock.
    pub(super) fn new(stream: Stream<'a>, place: Place, length: u32) -> Self {
        let session = stream.endpoint.suspension.stamp();
        Posted { stream, length, session, taken_back: false, _place: place }
    }

    /// True if the sender wrote to it, or it was taken back because the session is suspended (D4).
    pub fn is_over(&self) -> bool {
        let (registration, suspension) =
            (&self.stream.own().writable.0, &self.stream.endpoint.suspension);
        registration.done() > 0 || (suspension.stamp() != self.session && !suspension.holds_back())
    }

    /// Takes the buffer back; the bytes that were written to it count as received.
    pub fn take_back(mut self) -> usize {
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
