//! The base of asynchronous operations (N4) of an object with descriptors of its own. One descriptor is readable when a
//! result waits here, and when one of those is.

use super::inherited::Descriptor;
use super::Outcomes;
use crate::provider::interface::{Error, ProviderResult, Reported};
use crate::sys::{file, poll, Errno, Fd};

/// Results of operations that were pending, and the descriptors whose events count as well.
pub struct Waiting {
    outcomes: Outcomes,
    set: Descriptor,
}

fn in_words(_: Errno) -> Error {
    // Out of descriptors, watches or memory: nothing else can fail.
    Error::InsufficientResources
}

impl Waiting {
    /// Readable when a result waits.
    pub fn new() -> ProviderResult<Self> {
        let outcomes = Outcomes::new()?;
        let set = Descriptor::new(poll::epoll_create().map_err(in_words)?);
        let waiting = Waiting { outcomes, set };
        waiting.add(waiting.outcomes.descriptor())?;
        Ok(waiting)
    }

    /// Readable also when `channel` is, which never blocks from now on.
    pub fn over(channel: Fd) -> ProviderResult<Self> {
        let waiting = Self::new()?;
        waiting.watch(channel)?;
        Ok(waiting)
    }

    /// Readable also when `channel` is, which never blocks from now on.
    pub(crate) fn watch(&self, channel: Fd) -> ProviderResult<()> {
        let flags = file::status_flags(channel).map_err(in_words)?;
        file::set_status_flags(channel, flags | libc::O_NONBLOCK).map_err(in_words)?;
        self.add(channel)
    }

    fn add(&self, fd: Fd) -> ProviderResult<()> {
        let (set, events) = (self.set.get(), libc::EPOLLIN as u32);
        poll::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, 0).map_err(in_words)
    }

    /// Whether `channel` is readable makes no difference any more.
    pub(crate) fn unwatch(&self, channel: Fd) {
        let _ = poll::epoll_ctl(self.set.get(), libc::EPOLL_CTL_DEL, channel, 0, 0);
    }

    /// Readable while there may be something to fetch. Belongs to the object.
    pub fn descriptor(&self) -> Fd {
        self.set.get()
    }

    /// Reports what was pending, if anything was.
    pub fn settle(&self, pending: &mut Option<u64>, result: ProviderResult<()>) {
        self.outcomes.settle(pending, result);
    }

    /// The oldest result.
    pub fn fetch(&self) -> Option<Reported> {
        self.outcomes.fetch()
    }
}
