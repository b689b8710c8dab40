//! What counts when a thread died in the middle, and taking its locks over.

use super::Peer;
use sanshim_core::session::{Complete, Control};

impl Peer {
    /// Counts what a dead receiver read, since the session had counted `before`: it is lost with it.
    pub(super) fn lose(&mut self, before: u64) {
        let bytes = self.receiving.bytes() - before;
        if bytes > 0 {
            let from = self.doubt.take().expect("nobody died in a read");
            self.received += bytes;
            self.lost(from, bytes as usize);
        }
    }

    /// These bytes of the stream were lost with a receiver.
    pub(crate) fn lost(&mut self, from: u64, bytes: usize) {
        for place in from..from + bytes as u64 {
            let before = std::mem::replace(&mut self.arrived[place as usize], true);
            assert!(!before, "byte {place} came and was lost");
        }
        self.delivered += bytes as u64;
    }

    /// Takes the locks over that dead threads hold: a copy of `stream/recovery.rs`.
    pub(crate) fn succeed_the_dead(&mut self, other: &mut Peer) {
        if let Some(mut claimed) = self.dead_sender.take() {
            let before = self.sending.bytes();
            self.recover_lent();
            self.recover_write(other);
            claimed -= self.count_sent(before);
            self.claimed -= claimed;
            self.send_locked = false;
        }
        if std::mem::take(&mut self.dead_receiver) {
            let before = self.receiving.bytes();
            self.receiving.recover(|rest| other.readable.done_of(rest.key));
            self.lose(before);
            self.receive_locked = false;
        }
    }

    fn recover_lent(&mut self) {
        let Some((key, rest)) = self.sending.under_way() else { return };
        let lent = self.readable.done_of(key).is_some();
        let taken = if lent { self.readable.deregister().unwrap_or(0) } else { 0 };
        self.sending.read(taken);
        if taken < rest {
            self.due.note(Control::RestInMessages(key, taken));
        }
        self.sending.forget();
    }

    fn recover_write(&mut self, other: &Peer) {
        let Some((key, room)) = self.sending.writing() else { return };
        let written = other.writable.done_of(key).unwrap_or(0).min(room);
        if written > 0 {
            self.sending.wrote(written);
            self.sending.used(key, true);
            let complete = Complete { key, bytes: written, behaviour: None };
            self.due.note(Control::TransferComplete(complete));
        } else {
            self.sending.forget_write();
        }
    }
}
