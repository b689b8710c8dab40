//! The way of what an end sends: over TCP, over the SAN, and over TCP again. This module moves no bytes, and does not
//! know why the way changes.

/// Where the direction that an end sends in is now, as that end notes it. The numbers are those of the
/// [word](super::EndWord).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WayOut {
    /// Over the SAN.
    San = 0,
    /// Over TCP: it has not turned.
    Tcp = 1,
    /// It has left, and not all is out that goes over TCP first: the next sender goes on with that.
    Leaving = 2,
    /// Over TCP again.
    Left = 3,
}

/// What happens to a direction at the end that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutEvent {
    /// It turned: the receiver looks at the SAN, and knows how much went over TCP.
    Turned,
    /// The receiver was told that the rest comes over TCP, where part of what goes first has no room yet.
    OutInPart,
    /// All that goes over TCP first is out, or no peer is there any more.
    Out,
}

impl WayOut {
    /// Where the direction is after that; `None`: where it was, for the event comes too late to change anything.
    pub(crate) fn step(self, event: OutEvent) -> Option<WayOut> {
        use WayOut::{Leaving, Left, San, Tcp};
        match (event, self) {
            (OutEvent::Turned, Tcp) => Some(San),
            // A process that died had noted it, or the direction went back before it turned.
            (OutEvent::Turned, San | Leaving | Left) => None,
            (OutEvent::OutInPart, Tcp | San) => Some(Leaving),
            (OutEvent::OutInPart, Leaving | Left) => None,
            (OutEvent::Out, Tcp | San | Leaving) => Some(Left),
            (OutEvent::Out, Left) => None,
        }
    }

    /// By its number.
    #[inline(always)]
    pub(super) const fn of(number: u32) -> WayOut {
        match number & 3 {
            0 => WayOut::San,
            1 => WayOut::Tcp,
            2 => WayOut::Leaving,
            _ => WayOut::Left,
        }
    }
}
