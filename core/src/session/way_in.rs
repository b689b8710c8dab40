//! The way of what an end receives: over TCP, over the SAN, and over TCP again. This module moves no bytes, and does
//! not know why the way changes.

/// Where the direction that an end receives in is now, as that end notes it. The numbers are those of the
/// [word](super::EndWord).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WayIn {
    /// In the segment.
    San = 0,
    /// Over TCP: the peer has not turned, or not all is read that it sent before.
    Tcp = 1,
    /// Between hosts: this end reads nothing until the peer's link says whether the rest comes over TCP.
    Asking = 2,
    /// Over TCP again: nothing more is read from the segment.
    Back = 3,
}

/// What happens to a direction at the end that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InEvent {
    /// The peer turned, and all that it sent over TCP before is read; or TCP ended before it turned.
    Turned,
    /// The peer's link was asked for the rest over TCP.
    Asked,
    /// It grants that.
    Granted,
    /// What was sent is to be read in the segment.
    Refused,
    /// All that was sent over the SAN is read, or comes again over TCP.
    ReadOut,
}

impl WayIn {
    /// Where the direction is after that; `None`: where it was, for the event comes too late to change anything.
    pub(crate) fn step(self, event: InEvent) -> Option<WayIn> {
        use WayIn::{Asking, Back, San, Tcp};
        match (event, self) {
            (InEvent::Turned, Tcp) => Some(San),
            (InEvent::Turned, San | Asking | Back) => None,
            (InEvent::Asked, Tcp | San) => Some(Asking),
            (InEvent::Asked, Asking | Back) => None,
            (InEvent::Granted, Asking) => Some(Back),
            (InEvent::Granted, Tcp | San | Back) => None,
            // It may have asked before the peer turned: what came over TCP is counted anew.
            (InEvent::Refused, Asking) => Some(Tcp),
            (InEvent::Refused, Tcp | San | Back) => None,
            (InEvent::ReadOut, Tcp | San) => Some(Back),
            // That is for the peer's link to say.
            (InEvent::ReadOut, Asking | Back) => None,
        }
    }

    /// True if the kernel may have the next bytes.
    #[inline(always)]
    pub(crate) fn is_over_tcp(self) -> bool {
        matches!(self, WayIn::Tcp | WayIn::Back)
    }

    /// True if nothing is read from the segment, or not before the peer's link says so.
    #[inline(always)]
    pub(crate) fn is_read_out(self) -> bool {
        matches!(self, WayIn::Asking | WayIn::Back)
    }

    /// By its number.
    #[inline(always)]
    pub(super) const fn of(number: u32) -> WayIn {
        match number & 3 {
            0 => WayIn::San,
            1 => WayIn::Tcp,
            2 => WayIn::Asking,
            _ => WayIn::Back,
        }
    }
}
