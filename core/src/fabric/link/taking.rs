//! This process takes control of a link from a relative, and goes on where the relative stopped.

use super::controller::ControlProgress;
use super::course;
use super::state::{stage, CompletionTaker, Link, LinkPort};
use super::wire::Wire;
use crate::fabric::fork_gate::generation;
use crate::fabric::mailbox::MailboxAddress;
use crate::fabric::{helper, request};
use crate::provider::interface::client::*;
use crate::provider::interface::{Error, Started};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The pending operation.
const ARRIVE: u64 = 3;

impl Link {
    /// The peer came to this process's own listener: takes control if that was given; gives the connector back if it
    /// was not (yet). By the helper.
    pub(in crate::fabric) fn take_control(
        &self,
        port: &'static LinkPort,
        mailbox: MailboxAddress,
        connector: Connector,
    ) -> Result<(), (Error, Option<Connector>)> {
        let controller = self.controller().ok_or((Error::NotConnected, None))?;
        if controller.mailbox() != mailbox {
            return Err((Error::ConnectionRefused, Some(connector)));
        }
        let wire = Wire::new(port, connector).map_err(|why| {
            self.fail(why);
            (why, None)
        })?;
        let (number, pair, connector) = (wire.number(), wire.pair.clone(), wire.connector.clone());
        self.adopt(port, wire, controller.progress());
        self.enter(number);
        helper::watch(connector.descriptor());
        log::info!("link {:x}: this process has control", self.id);
        match connector.accept(&pair, &request::MAGIC, ARRIVE) {
            Ok(Started::Done) => self.resume(&connector),
            Ok(Started::Pending) => {}
            Err(why) => {
                self.fail(why);
                return Err((why, None));
            }
        }
        Ok(())
    }

    /// Makes the link this process's.
    fn adopt(&self, port: &'static LinkPort, wire: Wire, progress: ControlProgress) {
        // A fork copied what is here, from the midst of whatever its threads did. Or it is left from when this process
        // gave control away.
        let inherited = self.is_inherited();
        self.pushing.store(true, SeqCst);
        // SAFETY: this process had no control, so no thread sends here, and nothing comes.
        unsafe {
            let out = std::mem::take(&mut *self.out.get());
            let old = (*self.wire.get()).replace(wire);
            let following = (*self.moving.following.get()).take();
            if inherited {
                // The parent's.
                std::mem::forget((out, old, following));
            }
            (*self.out.get()).prepare();
            *self.into.get() =
                CompletionTaker { message: progress.next_in, tail: progress.bytes_in };
        }
        self.next_out.store(progress.next_out, Relaxed);
        self.bytes_out.store(progress.bytes_out, Relaxed);
        self.told_head.store(0, Relaxed);
        self.told_total.store(0, Relaxed);
        self.told_finished.store(0, SeqCst);
        self.posted.store(0, Relaxed);
        self.completed.store(0, SeqCst);
        self.due.store(0, SeqCst);
        self.again.store(0, SeqCst);
        self.starved.store(false, SeqCst);
        self.closing.store(false, SeqCst);
        if inherited {
            self.anchor.store(-1, SeqCst);
        }
        self.stage.store(stage::OPEN, SeqCst);
        self.wishes.begin_anew();
        self.returning.begin_anew();
        self.lending.begin_anew();
        self.moving.broken.store(false, Relaxed);
        self.moving.is_early.store(false, SeqCst);
        self.moving.sealed.store(true, SeqCst);
        self.moving.course.store(course::ARRIVES, SeqCst);
        self.port.store(std::ptr::from_ref(port).cast_mut(), SeqCst);
        self.made_in.store(generation(), SeqCst);
        self.pushing.store(false, SeqCst);
        self.owner.store(generation(), SeqCst);
    }
}
