//! A socket that no call uses but the call that is about to change which way its bytes go.

use super::structure::Structure;
use super::{phase, Socket};
use std::sync::atomic::Ordering;

/// See the module. A thread that pins the socket from now on waits until this is dropped. The phase is then as it was.
pub(in crate::switch) struct Alone<'a> {
    socket: &'a Socket,
    /// The phase to go back to.
    phase: u32,
}

impl Socket {
    /// `None` if another call of this process may be using the socket, or none of its descriptors is open any more. The
    /// caller has pinned it once, and keeps no stream of it.
    pub(in crate::switch) fn claim(&self, _: &mut Structure) -> Option<Alone<'_>> {
        let phase = self.phase();
        if phase == phase::ENTERING {
            return None;
        }
        self.set_phase(phase::ENTERING);
        let alone = Alone { socket: self, phase };
        // The phase has changed: a thread that pins the socket from then on sees that.
        self.is_used_by_caller_alone().then_some(alone)
    }

    fn is_used_by_caller_alone(&self) -> bool {
        let descriptors = self.descriptors.load(Ordering::SeqCst);
        let pins = self.pins.load(Ordering::SeqCst);
        // They get fewer without the lock.
        pins == descriptors + 1
            && descriptors > 0
            && self.descriptors.load(Ordering::SeqCst) == descriptors
    }
}

impl Alone<'_> {
    /// Takes away the socket's end of a connection, if it has one.
    pub(in crate::switch) fn take_away_end(&self) {
        // SAFETY: no other thread uses the socket, and a thread that is about to waits for its phase.
        unsafe { self.socket.detach() };
    }

    /// Lets the others go on, in this phase.
    pub(in crate::switch) fn go_on_as(mut self, phase: u32) {
        self.phase = phase;
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.socket.set_phase(self.phase);
    }
}
