//! What happens to a connection, as a process publishes it for `sanctl why` and `sanctl trace`.
//!
//! This module owns the list of events, and the two numbers by which the file stores each. It knows nothing of the ring
//! that they lie in ([`events`](super::events)).

use super::slot::State;
use crate::reason::Reason;
use crate::session::Mode;

/// Declares [`Event`] with, for each value, its number in the ring, its stable name, and how its value is stored.
macro_rules! events {
    ($($(#[$doc:meta])* $name:ident $(($kind:ident))? = $number:literal, $text:literal;)+) => {
        /// Something that happened to a connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event {
            $($(#[$doc])* $name $(($kind))?,)+
        }

        impl Event {
            /// The stable name, as `sanctl trace --json` shows it.
            pub const fn name(self) -> &'static str {
                match self { $(events!(@pattern $name $($kind)?) => $text,)+ }
            }

            /// Its kind and its value.
            pub(super) fn encode(self) -> (u8, u64) {
                match self { $(events!(@bound value $name $($kind)?) => ($number, events!(@store value $($kind)?)),)+ }
            }

            /// `None` if this version knows no such event.
            pub(super) fn decode(kind: u8, value: u64) -> Option<Event> {
                match kind { $($number => Some(events!(@load value $name $($kind)?)),)+ _ => None }
            }
        }
    };
    (@pattern $name:ident) => { Event::$name };
    (@pattern $name:ident $kind:ident) => { Event::$name(_) };
    (@bound $value:ident $name:ident) => { Event::$name };
    (@bound $value:ident $name:ident $kind:ident) => { Event::$name($value) };
    (@store $value:ident) => { 0 };
    (@store $value:ident $kind:ident) => { Stored::store($value) };
    (@load $value:ident $name:ident) => { Event::$name };
    (@load $value:ident $name:ident $kind:ident) => { Event::$name(<$kind as Stored>::load($value)?) };
}

events! {
    /// The process begins to publish the connection. The reason tells why it is on the SAN or on TCP.
    Opened(Reason) = 1, "opened";
    /// The reason why it is on the SAN, or on TCP, changed.
    Reason(Reason) = 2, "reason";
    /// Its state changed.
    State(State) = 3, "state";
    /// It is busy, so this end looks for the other one.
    Looks = 4, "looks";
    /// This end is the connector's, and offered a session.
    Offered = 5, "offered";
    /// This end is the acceptor's, and took the session that was offered.
    Taken = 6, "taken";
    /// This end sends over the SAN from this byte of the stream on.
    SendingTurned(u64) = 7, "sending-turned";
    /// This end receives over the SAN from this byte of the stream on.
    ReceivingTurned(u64) = 8, "receiving-turned";
    /// The process does not publish it any more. It is closed, or another program has it now.
    Closed = 9, "closed";
    /// Large sends go in another way from now on (A7).
    Mode(Mode) = 10, "mode";
    /// The message buffers that this end sends into have so many bytes now (A9).
    MessageSize(u64) = 11, "message-size";
    /// The send buffer has so many bytes now.
    SendBuffer(u64) = 12, "send-buffer";
    /// This process took control of sending from another one (D2), by the swap of this number.
    SendSwapped(u64) = 13, "send-swapped";
    /// As [`SendSwapped`](Event::SendSwapped), for receiving.
    ReceiveSwapped(u64) = 14, "receive-swapped";
    /// This process suspended the session to take control (D4), for so many nanoseconds.
    Suspended(u64) = 15, "suspended";
}

impl Event {
    /// True if it can happen many times a second. The process then notes it only while a reader follows.
    pub(super) const fn is_frequent(self) -> bool {
        matches!(
            self,
            Event::Mode(_)
                | Event::MessageSize(_)
                | Event::SendBuffer(_)
                | Event::SendSwapped(_)
                | Event::ReceiveSwapped(_)
                | Event::Suspended(_)
        )
    }
}

/// A value of an event as a number.
trait Stored: Sized {
    fn store(self) -> u64;
    fn load(number: u64) -> Option<Self>;
}

impl Stored for u64 {
    fn store(self) -> u64 {
        self
    }

    fn load(number: u64) -> Option<u64> {
        Some(number)
    }
}

impl Stored for Reason {
    fn store(self) -> u64 {
        self.as_u32().into()
    }

    fn load(number: u64) -> Option<Reason> {
        Reason::from_u32(number.try_into().ok()?)
    }
}

impl Stored for State {
    fn store(self) -> u64 {
        self as u64
    }

    fn load(number: u64) -> Option<State> {
        State::from_u32(number.try_into().ok()?)
    }
}

impl Stored for Mode {
    fn store(self) -> u64 {
        self as u64
    }

    fn load(number: u64) -> Option<Mode> {
        Mode::from_u32(number.try_into().ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_being_stored_and_nonsense_is_none() {
        let all = [
            Event::Opened(Reason::Quiet),
            Event::Reason(Reason::OnSan),
            Event::State(State::FinWait),
            Event::Looks,
            Event::SendingTurned(u64::MAX),
            Event::Mode(Mode::SmallThenLarge),
            Event::Suspended(7),
        ];
        for event in all {
            let (kind, value) = event.encode();
            assert_eq!(Event::decode(kind, value), Some(event));
        }
        for (kind, value) in [(0, 0), (16, 0), (1, 999), (1, u64::MAX), (3, 0), (10, 4)] {
            assert_eq!(Event::decode(kind, value), None, "{kind} {value}");
        }
    }
}
