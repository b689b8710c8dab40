//! Two ends on one host. What one end publishes lies in the memory of both, so the peer finds it. A peer that sleeps hears
//! the bell.

use super::{Carrier, News, Rdma, SleepStep};
use crate::fabric::Sleeper;
use crate::provider::shm::{Refusal, Right, BOTH_SHUT, DEAF};
use crate::session::transfer::Abilities;
use crate::session::LARGEST_TRANSFER;
use crate::switch::stream::Stream;
use crate::sys::Fd;
use std::sync::atomic::Ordering::SeqCst;

/// See the module.
pub(super) struct OneHost;

impl Carrier for OneHost {
    fn send(&self, stream: &Stream, news: News) -> bool {
        match news {
            News::Withdraws => drop(stream.segment.agreement().withdraw()),
            // A thread that sleeps on the SAN does not hear what comes over TCP.
            News::Left => stream.segment.bells().ring(),
            News::Closed if hears_no_close(stream) => stream.segment.bells().ring(),
            _ => {}
        }
        true
    }

    fn receive(&self) {}

    fn receive_all(&self) {}

    fn ring(&self, stream: &Stream) -> bool {
        let mut goes_on = true;
        if stream.owes_ring() {
            stream.ring_by(|| {
                let direction = &stream.own().sending.0.direction;
                // The count comes before the ring: by the count a receiver that recalls the direction knows that something
                // came.
                goes_on = direction.ring() || !direction.state().is_final();
                stream.statistics.wakeups_sent.add(1);
                stream.segment.bells().ring();
            });
        }
        goes_on
    }

    fn bell(&self, stream: &Stream) -> Fd {
        stream.segment.bells().heard()
    }

    fn silence(&self, stream: &Stream) -> bool {
        stream.segment.bells().silence()
    }

    fn sleep(&self, _: SleepStep) -> Option<Sleeper> {
        None
    }

    fn answer(&self) -> Option<bool> {
        None
    }

    fn close(&self) {}
}

/// True if the kernel tells the peer nothing of what this end's close means. TCP resets at a close with something unread
/// behind both ends, and the kernel does not know of what is unread here. And a peer may not listen to its kernel any more.
fn hears_no_close(stream: &Stream) -> bool {
    let is_shut = stream.own().sending.0.finished.load(SeqCst) & BOTH_SHUT == BOTH_SHUT;
    is_shut && stream.has_unread() || stream.peer().sending.0.finished.load(SeqCst) & DEAF != 0
}

impl Rdma for OneHost {
    fn abilities(&self, stream: &Stream) -> Abilities {
        stream.endpoint.abilities()
    }

    fn largest_transfer(&self) -> u32 {
        LARGEST_TRANSFER
    }

    fn lend(&self, _: Right, _: u32, _: u64, _: u32) -> bool {
        true
    }

    fn take_back(&self, _: Right, _: bool) {}

    fn wants_back(&self) -> bool {
        false
    }

    unsafe fn read(
        &self,
        stream: &Stream,
        lent: (u32, u32, u32),
        to: *mut [u8],
        consumes: bool,
    ) -> Result<usize, Refusal> {
        let (memory, lender) = (&stream.peer().readable.0, stream.endpoint.lender());
        let process = memory.process();
        if process != lender.pid {
            return Err(Refusal::Stranger);
        }
        // SAFETY: the caller's promise.
        unsafe { memory.read(process, lent, to, || lender.lives(), consumes) }
    }

    unsafe fn write(
        &self,
        stream: &Stream,
        (key, room): (u32, u32),
        from: *const u8,
        length: usize,
    ) -> Result<usize, Refusal> {
        let (memory, lender) = (&stream.peer().writable.0, stream.endpoint.lender());
        let process = memory.process();
        if process != lender.pid || !lender.lives() {
            return Err(Refusal::Stranger);
        }
        // SAFETY: the caller's promise.
        unsafe { memory.write(process, key, room, from, length) }
    }
}
