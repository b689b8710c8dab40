//! Which lane carries a socket's bytes. This module only looks at it. [`setup::advance`](crate::switch::setup::advance)
//! is the step that may change it.

use super::{phase, Socket};
use crate::sys::process;

/// What carries the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The kernel's TCP.
    Tcp,
    /// The SAN: the switch does the transfers.
    San,
}

impl Socket {
    /// The lane at this moment. This waits for nothing and changes nothing. A socket that is entering is on TCP still.
    /// A caller that has kept its pin since a step does not see the socket come to the SAN.
    #[inline]
    pub(in crate::switch) fn lane(&self) -> Lane {
        match self.phase() {
            phase::SAN => Lane::San,
            _ => Lane::Tcp,
        }
    }

    /// Waits for another thread that is about to change the lane. From then on one on TCP stays there as long as the caller
    /// keeps its pin.
    #[inline]
    pub(in crate::switch) fn await_lane(&self) -> Lane {
        // No thread that is about to do so may be interrupted.
        while self.phase() == phase::ENTERING {
            process::yield_now();
        }
        self.lane()
    }
}
