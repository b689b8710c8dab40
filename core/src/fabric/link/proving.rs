//! The end of the proof that both ends of a link have one connection ([`proof`](crate::proof)), which begins with the
//! request for the link. The end that approached concludes in its first frame. Until then the other end does not enter.

use super::sender::{Full, LinkSender};
use super::state::Link;
use crate::fabric::frame::FrameKind;
use crate::proof::{Answered, Conclusion};
use std::sync::atomic::Ordering::SeqCst;

impl Link {
    /// The peer has proven which end it has. It gets this with the first frame.
    pub(in crate::fabric) fn conclude(&self, conclusion: Conclusion) {
        let _ = self.proving.conclusion.set(conclusion);
        self.proving.is_proven.store(true, SeqCst);
        self.note(FrameKind::Proof);
    }

    /// The peer has to conclude. Called before anything can come.
    pub(in crate::fabric) fn await_conclusion(&self, answered: Answered) {
        let _ = self.proving.answered.set(answered);
    }

    /// True once the peer has proven which end it has.
    pub(crate) fn is_proven(&self) -> bool {
        self.proving.is_proven.load(SeqCst)
    }

    pub(super) fn send_conclusion(&self, out: &mut LinkSender) -> Result<(), Full> {
        match self.proving.conclusion.get() {
            Some(conclusion) => self.send(out, FrameKind::Proof, &[conclusion]),
            None => Ok(()),
        }
    }

    /// Heeds the peer's conclusion. False if it proves nothing, or is none.
    pub(super) fn heed_conclusion(&self, payload: &[u8]) -> bool {
        let answered = self.proving.answered.get().filter(|_| !self.is_proven());
        let conclusion = Conclusion::try_from(payload).ok();
        let is_proven =
            answered.zip(conclusion).is_some_and(|(answered, said)| answered.accepts(&said));
        if is_proven {
            self.proving.is_proven.store(true, SeqCst);
        }
        is_proven
    }
}
