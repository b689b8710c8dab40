//! Which connections' ends the calling thread has hold of: their locks, or buffers that it posted for RDMA write. When
//! it jumps out of a signal handler past the calls that would let go of them, that is done in their place.

use super::Stream;
use crate::provider::shm::{Registration, Side};
use crate::switch::endpoint::Endpoint;
use crate::sys::jump::Jump;
use crate::sys::lock::NOBODY;
use crate::sys::{process, time};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering::Relaxed, Ordering::SeqCst};

/// A call has hold of its end twice at most, and calls in signal handlers of theirs. Beyond, nothing is noted.
const MOST: usize = 8;

/// One end.
struct Entry {
    /// Null: free. A handler that interrupts the others' change finds it so.
    endpoint: Cell<*const Endpoint>,
    own: Cell<*const Side>,
    peer: Cell<*const Side>,
    /// Where the call's stream lies.
    stack: Cell<usize>,
}

impl Entry {
    const FREE: Entry = Entry {
        endpoint: Cell::new(ptr::null()),
        own: Cell::new(ptr::null()),
        peer: Cell::new(ptr::null()),
        stack: Cell::new(0),
    };
}

thread_local! {
    static ENTRIES: [Entry; MOST] = const { [Entry::FREE; MOST] };
}

/// An entry of the calling thread until it is dropped. To be made before what it stands for is taken.
pub(in crate::switch) struct Hold(*const Entry);

impl Hold {
    /// The thread is about to have hold of the stream's end.
    #[inline(always)]
    pub(in crate::switch) fn of(stream: &Stream) -> Hold {
        ENTRIES.with(|entries| {
            let Some(free) = entries.iter().find(|entry| entry.endpoint.get().is_null()) else {
                return Hold(ptr::null());
            };
            free.own.set(stream.own());
            free.peer.set(stream.peer());
            // The call's own, as long as it lasts.
            free.stack.set(ptr::from_ref(stream) as usize);
            compiler_fence(SeqCst);
            free.endpoint.set(stream.endpoint);
            compiler_fence(SeqCst);
            Hold(free)
        })
    }
}

impl Drop for Hold {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        if !self.0.is_null() {
            // SAFETY: the thread's own, which lives as long as it; holds do not leave their thread.
            unsafe { (*self.0).endpoint.set(ptr::null()) };
        }
    }
}

/// Before the calling thread jumps out of a signal handler: lets go of what calls have hold of that will never return.
/// What they left half done is put right, as after a holder that died, by whoever comes next.
pub fn before_jump(jump: &Jump) {
    ENTRIES.with(|entries| {
        for entry in entries {
            let endpoint = entry.endpoint.get();
            if endpoint.is_null() || !jump.passes(entry.stack.get()) {
                continue;
            }
            let stays = |other: &Entry| {
                ptr::eq(other.endpoint.get(), endpoint) && !jump.passes(other.stack.get())
            };
            // A handler's call on the end that the call it interrupted had hold of has nothing of its own.
            if !entries.iter().any(stays) {
                // SAFETY: the frame that keeps them alive is still there.
                unsafe { let_go(&*endpoint, &*entry.own.get(), &*entry.peer.get()) };
            }
            entry.endpoint.set(ptr::null());
        }
    });
}

fn let_go(endpoint: &Endpoint, own: &Side, peer: &Side) {
    // Else the buffer that is lent now, if one is, is another thread's.
    if endpoint.receive.poster.load(Relaxed) == process::tid() {
        endpoint.due.forget_advertisement();
        take_back(&own.writable.0, 0);
        endpoint.receive.poster.store(NOBODY, Relaxed);
    }
    if endpoint.send.lock.is_held_by_caller() {
        // It is only read from: a reader never keeps it busy.
        let _ = own.readable.0.deregister(0);
        peer.writable.0.end_write_of(process::tid());
        endpoint.send.awaits_peer.store(0, Relaxed);
    }
    endpoint.sleepers.forget_own();
    endpoint.send.lock.abandon_own();
    endpoint.receive.lock.abandon_own();
    endpoint.bell.abandon_own();
    endpoint.anchor.abandon_own();
}

/// Memory lent for writing is not lent any more. The bytes that were written to it, of `length`.
pub(super) fn take_back(registration: &Registration, length: u32) -> u32 {
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
