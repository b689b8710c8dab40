//! What lies between this end and its peer: on one host nothing but the memory that both have ([`OneHost`]), between hosts a
//! [`Link`] that plays the peer's part in this end's memory.
//!
//! The switch says here what this end published, looks for, or sleeps on. What a link has to do for that is in
//! [`over_link`], and what is left to do on one host is in [`over_memory`]. Only a few further files know links: those
//! that make them, end them, and hand them from process to process. (`scripts/structure` has the list.)

mod over_link;
mod over_memory;

use super::Stream;
use crate::fabric::{Link, Sleeper};
use crate::provider::shm::{Refusal, Right, CLOSED};
use crate::session::transfer::Abilities;
use crate::sys::Fd;
use over_memory::OneHost;
use std::sync::atomic::Ordering::SeqCst;

/// What this end published for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum News {
    /// It has entered the SAN.
    Entered,
    /// Its direction turned to the SAN.
    Turned,
    /// It wants to go back to TCP before both ends have entered.
    Withdraws,
    /// It reads nothing more here, and wants what it has not read over TCP.
    Recalls,
    /// It sends over TCP from now on.
    Left,
    /// It has read.
    Read,
    /// It shut its receiving direction down.
    ReadShut,
    /// Its last descriptor goes.
    Closed,
}

/// How far a thread is on its way to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum SleepStep {
    /// It counts as asleep in a call on this connection.
    Counted,
    /// It waits by other means than such a call: on an epoll set, or for a signal.
    Elsewhere,
    /// Its select counter is raised. It looks once more before it sleeps.
    Raised,
    /// Nothing but the bell will wake it.
    OnBell,
}

/// The operations of what lies between two ends.
pub(in crate::switch) trait Carrier {
    /// Has the peer hear the news. True: the peer has heard, or need not be told.
    fn send(&self, stream: &Stream, news: News) -> bool;

    /// Takes in what has come, unless another thread does that at this moment.
    fn receive(&self);

    /// Takes in all that has come by now, also what another thread is about to take.
    fn receive_all(&self);

    /// Rings the peer's bell for what this end published. False: the direction is over for the SAN, and the peer wants
    /// something else of this end.
    fn ring(&self, stream: &Stream) -> bool;

    /// The descriptor that becomes readable when the peer rings; -1: none.
    fn bell(&self, stream: &Stream) -> Fd;

    /// Takes the rings off. True: there was one.
    fn silence(&self, stream: &Stream) -> bool;

    /// A thread of this end is about to sleep. A thread that counts as asleep here may be told by the queue itself.
    fn sleep(&self, step: SleepStep) -> Option<Sleeper>;

    /// Gives the peer's answer to [`News::Recalls`]. `None`: not yet. False: this end is to read here all that the peer
    /// sent.
    fn answer(&self) -> Option<bool>;

    /// Ends what lies between the ends, because the peer did not answer [`News::Withdraws`].
    fn close(&self);
}

/// RDMA: the use of one program's memory by the other end, for one transfer (M2, M5).
pub(in crate::switch::stream) trait Rdma {
    /// Gives what RDMA can do at this moment (A2).
    fn abilities(&self, stream: &Stream) -> Abilities;

    /// Most bytes that one transfer moves.
    fn largest_transfer(&self) -> u32;

    /// Lends `length` bytes at `at`, registered in the segment as number `key`. False: they cannot be lent, and are not.
    fn lend(&self, right: Right, key: u32, at: u64, length: u32) -> bool;

    /// Ends the peer's use of what is lent with this right. `is_unused`: the peer uses it no more, whatever happens.
    fn take_back(&self, right: Right, is_unused: bool);

    /// True if a thread that has lent memory is to take it back soon.
    fn wants_back(&self) -> bool;

    /// Copies to `to` what the peer lent as number `key` of so many bytes, of which so many are `taken`. Gives how many
    /// bytes it copied.
    ///
    /// # Safety
    /// The bytes at `to` may be written.
    unsafe fn read(
        &self,
        stream: &Stream,
        lent: (u32, u32, u32),
        to: *mut [u8],
        consumes: bool,
    ) -> Result<usize, Refusal>;

    /// Copies `length` bytes at `from` into what the peer lent as number `key` with so much `room`. Gives how many bytes
    /// it copied.
    ///
    /// # Safety
    /// The bytes may be read.
    unsafe fn write(
        &self,
        stream: &Stream,
        lent: (u32, u32),
        from: *const u8,
        length: usize,
    ) -> Result<usize, Refusal>;
}

impl<'a> Stream<'a> {
    /// True if the peer is on another host. Then the stream and the kernel's end of the connection come by different ways,
    /// and either may be faster.
    #[inline(always)]
    pub(in crate::switch) fn is_between_hosts(&self) -> bool {
        self.link.is_some()
    }

    /// The link of a connection between hosts, for those that make, end and hand on links.
    #[inline]
    pub(in crate::switch) fn link(&self) -> Option<&'a Link> {
        self.link
    }

    /// What lies between this end and its peer.
    #[inline]
    pub(in crate::switch) fn carrier(&self) -> &'a dyn Carrier {
        match self.link {
            None => &OneHost,
            Some(link) => link,
        }
    }

    /// RDMA over it.
    #[inline]
    pub(super) fn rdma(&self) -> &'a dyn Rdma {
        match self.link {
            None => &OneHost,
            Some(link) => link,
        }
    }

    /// Tells the peer that the last descriptor of this end goes.
    pub(in crate::switch) fn say_closed(&self) {
        self.own().sending.0.finished.fetch_or(CLOSED, SeqCst);
        self.carrier().send(self, News::Closed);
    }

    /// The descriptor on which this end sleeps beside the TCP connection; -1: none.
    #[inline]
    pub(crate) fn bell(&self) -> Fd {
        self.carrier().bell(self)
    }

    /// Takes in what has come, unless another thread does that at this moment.
    #[inline]
    pub(crate) fn poll(&self) {
        if self.is_between_hosts() {
            self.carrier().receive();
        }
    }
}
