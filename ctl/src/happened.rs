//! What happened to a connection, in words, and when.

use crate::units::bytes;
use chrono::{DateTime, Local, TimeDelta};
use sanshim_core::registry::Event;
use sanshim_core::sys::time;

/// The event as a sentence for people, which has no subject.
pub(crate) fn sentence(event: Event) -> String {
    match event {
        Event::Opened(reason) => format!("first seen: {}", reason.sentence()),
        Event::Reason(reason) => reason.sentence().to_owned(),
        Event::State(state) => format!("is {} now", state.name()),
        Event::Looks => "is busy, and looks for its other end".to_owned(),
        Event::Offered => "offered a session to its other end".to_owned(),
        Event::Taken => "took the session that its other end offered".to_owned(),
        Event::SendingTurned(byte) => format!("sends over the SAN, after {} over TCP", size(byte)),
        Event::ReceivingTurned(byte) => {
            format!("receives over the SAN, after {} over TCP", size(byte))
        }
        Event::Closed => "closed".to_owned(),
        Event::Mode(mode) => format!("large sends go another way: {}", mode.name()),
        Event::MessageSize(size) => format!("message buffers have {}", bytes(size)),
        Event::SendBuffer(size) => format!("the send buffer has {}", bytes(size)),
        Event::SendSwapped(swap) => {
            format!("this process took control of sending from another one (swap {swap})")
        }
        Event::ReceiveSwapped(swap) => {
            format!("this process took control of receiving from another one (swap {swap})")
        }
        Event::Suspended(nanoseconds) => {
            format!("this process suspended the session for {} µs", nanoseconds / 1000)
        }
    }
}

/// The number that belongs to an event, and the code, for programs.
pub(crate) fn value(event: Event) -> serde_json::Value {
    match event {
        Event::Opened(reason) | Event::Reason(reason) => reason.code().into(),
        Event::State(state) => state.name().into(),
        Event::Mode(mode) => mode.name().into(),
        Event::SendingTurned(number)
        | Event::ReceivingTurned(number)
        | Event::MessageSize(number)
        | Event::SendBuffer(number)
        | Event::SendSwapped(number)
        | Event::ReceiveSwapped(number)
        | Event::Suspended(number) => number.into(),
        Event::Looks | Event::Offered | Event::Taken | Event::Closed => serde_json::Value::Null,
    }
}

fn size(number: u64) -> String {
    match number {
        0..=1023 => format!("{number} bytes"),
        _ => bytes(number),
    }
}

/// What the monotonic clock and the wall clock said at the same moment.
pub(crate) struct Clock {
    monotonic: u64,
    wall: DateTime<Local>,
}

impl Clock {
    /// Both now.
    pub(crate) fn now() -> Clock {
        Clock { monotonic: time::now(), wall: Local::now() }
    }

    /// The wall clock's time when the monotonic clock had so many nanoseconds.
    pub(crate) fn at(&self, nanoseconds: u64) -> DateTime<Local> {
        let later = nanoseconds.wrapping_sub(self.monotonic) as i64;
        self.wall + TimeDelta::nanoseconds(later)
    }

    /// [`at`](Self::at) for people: the time of day with milliseconds, and the date if it is another day.
    pub(crate) fn shown(&self, nanoseconds: u64) -> String {
        let at = self.at(nanoseconds);
        let is_today = at.date_naive() == self.wall.date_naive();
        at.format(if is_today { "%H:%M:%S%.3f" } else { "%Y-%m-%d %H:%M:%S%.3f" }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sanshim_core::reason::Reason;

    #[test]
    fn events_are_sentences() {
        assert_eq!(sentence(Event::Reason(Reason::OnSan)), "is on the SAN");
        assert_eq!(
            sentence(Event::SendingTurned(812)),
            "sends over the SAN, after 812 bytes over TCP"
        );
        assert_eq!(value(Event::SendingTurned(812)), 812);
        assert_eq!(value(Event::Opened(Reason::Quiet)), "quiet");
    }

    #[test]
    fn times_before_and_after_now_are_told() {
        let clock = Clock::now();
        let second = 1_000_000_000;
        assert_eq!(clock.at(clock.monotonic - second), clock.wall - TimeDelta::seconds(1));
        assert_eq!(clock.at(clock.monotonic + second), clock.wall + TimeDelta::seconds(1));
        assert_eq!(clock.shown(clock.monotonic).len(), "00:00:00.000".len());
        let before = Clock { monotonic: 3 * 86_400 * second, ..clock };
        assert_eq!(before.shown(0).len(), "2026-01-01 00:00:00.000".len());
    }
}
