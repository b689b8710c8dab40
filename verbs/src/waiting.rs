//! The base of asynchronous operations (N4): one descriptor for the results that wait here and for
//! a device's own channel.

use crate::error;
use sanshim_core::provider::interface::{Reported, Result};
use sanshim_core::provider::software::Outcomes;
use sanshim_core::sys::{file, poll, Fd};

pub(crate) struct Waiting {
    outcomes: Outcomes,
    set: Fd,
}

impl Waiting {
    /// Readable when `channel` is or when a result waits. The channel never blocks from now on.
    pub(crate) fn new(channel: Fd) -> Result<Self> {
        let in_c = |e: sanshim_core::sys::Errno| error::of_errno(e.0);
        let outcomes = Outcomes::new()?;
        let set = file::move_high(poll::epoll_create().map_err(in_c)?);
        let waiting = Waiting { outcomes, set };
        for fd in [channel, waiting.outcomes.descriptor()] {
            poll::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 0).map_err(in_c)?;
        }
        // SAFETY: plain descriptor flags.
        let flags = unsafe { libc::fcntl(channel, libc::F_GETFL) };
        // SAFETY: as above.
        error::check_last(unsafe {
            libc::fcntl(channel, libc::F_SETFL, flags | libc::O_NONBLOCK)
        })?;
        Ok(waiting)
    }

    pub(crate) fn descriptor(&self) -> Fd {
        self.set
    }

    pub(crate) fn settle(&self, pending: &mut Option<u64>, result: Result<()>) {
        self.outcomes.settle(pending, result);
    }

    pub(crate) fn fetch(&self) -> Option<Reported> {
        self.outcomes.fetch()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        file::close(self.set);
    }
}
