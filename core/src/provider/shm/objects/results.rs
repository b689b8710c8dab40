//! The part of a completion queue that its queue pairs hold: the place of their results, and the descriptor that wakes
//! a thread which waits for them. This part does not know the queue pairs. It knows their doorbells by keys.

use super::channel::LocalChannel;
use crate::provider::interface::{Completion, Error, ProviderResult};
use crate::provider::software::inherited::Descriptor;
use crate::provider::software::{Completions, Notifier};
use crate::sys::{poll, Fd};

/// The descriptor is readable for a result, and for queue pairs' doorbells.
const RESULT: u64 = 0;
/// The queue was kicked.
pub(super) const KICK: u64 = 1;

/// See the module.
pub(super) struct Results {
    pub(super) completions: Completions,
    /// A thread saw something that a sleeper has to look at.
    pub(super) kick: Notifier,
    /// Readable for a result, a kick, and each doorbell.
    pub(super) set: Descriptor,
}

fn watch(set: &Descriptor, fd: Fd, key: u64) -> ProviderResult<()> {
    poll::epoll_ctl(set.get(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, key)
        .map_err(|_| Error::InsufficientResources)
}

impl Results {
    /// The first key of a queue pair.
    pub(super) const FIRST_KEY: u64 = 2;

    /// For `depth` results.
    pub(super) fn new(depth: u32) -> ProviderResult<Self> {
        let (completions, kick) = (Completions::new(depth)?, Notifier::new()?);
        let made = poll::epoll_create().map_err(|_| Error::InsufficientResources)?;
        let results = Results { completions, kick, set: Descriptor::new(made) };
        watch(&results.set, results.completions.descriptor(), RESULT)?;
        watch(&results.set, results.kick.descriptor(), KICK)?;
        Ok(results)
    }

    /// Adds a result.
    pub(super) fn add(&self, completion: Completion) {
        self.completions.add(completion);
    }

    /// True if the next result has to be told. SeqCst.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        self.completions.is_awaited()
    }

    /// Has the thread that waits look at all queue pairs.
    #[cold]
    pub(super) fn kick(&self) {
        self.kick.raise();
    }

    /// A queue pair is connected: its doorbell wakes a thread that waits.
    pub(super) fn watch(&self, channel: &LocalChannel, key: u64) -> ProviderResult<()> {
        watch(&self.set, channel.doorbell(), key)?;
        if self.is_awaited() {
            // It was armed without this one.
            self.kick();
        }
        Ok(())
    }

    /// Its doorbell wakes no thread any more.
    pub(super) fn unwatch(&self, channel: &LocalChannel) {
        let _ = poll::epoll_ctl(self.set.get(), libc::EPOLL_CTL_DEL, channel.doorbell(), 0, 0);
    }
}
