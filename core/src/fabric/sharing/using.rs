//! The program's threads call this when they published, received, or are about to sleep. The process that controls the
//! link carries it on. Any other process has the controller do that, and asks for control if it does so often.

use crate::fabric::link::{Link, Tell};

impl Link {
    /// This end published something that its peer waits for.
    pub(crate) fn ring(&self) {
        self.have_link_rung_again();
        if !self.is_ours() {
            self.want();
        }
        self.push(Tell::Due);
        // A program that only sends takes in what its peers say, so the helper need not.
        self.poll();
    }

    /// After this end received: tells the peer if that is due.
    #[inline]
    pub(crate) fn received(&self) {
        if !self.is_ours() {
            return self.want();
        }
        self.tell_what_was_read();
    }

    /// A thread of this end is about to sleep until the event rings; it looks once more afterwards.
    pub(crate) fn before_sleep(&self) {
        if !self.is_ours() {
            self.want_if_orphaned();
            return self.kick_owner();
        }
        self.prepare_sleep();
    }
}
