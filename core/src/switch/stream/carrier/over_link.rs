//! Two ends on two hosts, with a link that plays the peer's part in the memory of each.

use super::{Carrier, News, Rdma, SleepStep};
use crate::fabric::{Link, Sleeper};
use crate::provider::shm::{Refusal, Right};
use crate::session::transfer::Abilities;
use crate::switch::stream::Stream;
use crate::sys::{file, Fd};

impl Carrier for Link {
    fn send(&self, _: &Stream, news: News) -> bool {
        match news {
            News::Entered => self.say_entered(),
            // After a failure nothing tells the peer any more.
            News::Turned => return self.make_turn_known() || self.has_failed(),
            News::Withdraws => self.withdraw(),
            News::Recalls => self.ask_again(),
            // This comes before anything goes over TCP. Otherwise bytes would belong to nobody if this process died before
            // the peer knew.
            News::Left => self.tell_return(),
            News::Read => self.received(),
            // The peer is to hear this before TCP's end, or it takes the end for that of one that left bytes unread.
            News::ReadShut => Link::ring(self),
            News::Closed => self.poll(),
        }
        false
    }

    fn receive(&self) {
        self.poll();
    }

    fn receive_all(&self) {
        self.catch_up();
    }

    fn ring(&self, stream: &Stream) -> bool {
        stream.ring_by(|| Link::ring(self));
        true
    }

    fn bell(&self, _: &Stream) -> Fd {
        self.event()
    }

    fn silence(&self, _: &Stream) -> bool {
        let mut rings = [0u8; 8];
        file::read(self.event(), rings.as_mut_ptr(), rings.len()).is_ok()
    }

    fn sleep(&self, step: SleepStep) -> Option<Sleeper> {
        match step {
            SleepStep::Counted => return self.falls_asleep(),
            SleepStep::Elsewhere => self.note_awaited_elsewhere(),
            SleepStep::Raised => self.before_sleep(),
            SleepStep::OnBell => self.notify_helper(),
        }
        None
    }

    fn answer(&self) -> Option<bool> {
        Link::answer(self)
    }

    fn close(&self) {
        self.abandon_unanswered();
    }
}

impl Rdma for Link {
    fn abilities(&self, stream: &Stream) -> Abilities {
        // The queue pair may be another process's, or on its way there.
        if self.may_use_memory() {
            stream.endpoint.abilities()
        } else {
            Abilities::NONE
        }
    }

    fn largest_transfer(&self) -> u32 {
        Link::largest_transfer(self)
    }

    fn lend(&self, right: Right, key: u32, at: u64, length: u32) -> bool {
        Link::lend(self, right, key, at, length)
    }

    fn take_back(&self, right: Right, is_unused: bool) {
        self.take_memory_back(right, is_unused);
    }

    fn wants_back(&self) -> bool {
        self.wants_memory_back()
    }

    unsafe fn read(
        &self,
        _: &Stream,
        lent: (u32, u32, u32),
        to: *mut [u8],
        consumes: bool,
    ) -> Result<usize, Refusal> {
        // SAFETY: the caller's promise.
        unsafe { self.read_lent(lent, to, consumes) }
    }

    unsafe fn write(
        &self,
        _: &Stream,
        (key, room): (u32, u32),
        from: *const u8,
        length: usize,
    ) -> Result<usize, Refusal> {
        // SAFETY: the caller's promise.
        unsafe { self.write_lent(key, room, from, length) }
    }
}
