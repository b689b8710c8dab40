//! Letting the sender get ahead, where a stream flows.
//!
//! A receiver that keeps up with its sender reads every line while it is still dirty in the sender's cache. That costs
//! several times what it costs once the line has moved on. So where a sender has filled the large send buffer, a
//! receiver that caught up lets it get ahead once, by more than a core's own cache holds. From then on both work at
//! full speed. A receiver never waits for a sender that does not send.

use crate::switch::spin;
use crate::switch::stream::Stream;
use crate::sys::time;

/// A pause in the flow that ends the gathering, in nanoseconds.
const PAUSE: u64 = 20_000;
/// The longest gathering, in nanoseconds.
const LONGEST: u64 = 1_000_000;
/// Before a receive of `wanted` bytes: lets a sender that streams get ahead.
#[inline]
pub(in crate::switch) fn let_sender_ahead(stream: &Stream, wanted: usize) {
    if stream.streams_in() {
        let_gather(stream, wanted);
    }
}

#[cold]
fn let_gather(stream: &Stream, wanted: usize) {
    let state = &stream.endpoint.receive.batching;
    let (there, target) = stream.ahead();
    if there >= (wanted as u64).min(target / 4) || target == 0 {
        return;
    }
    if !state.count_down() {
        return;
    }
    if spin::is_alone() {
        return state.note_useless();
    }
    let start = time::now();
    let (mut last, mut moved) = (there, start);
    let gathered = loop {
        for _ in 0..64 {
            std::hint::spin_loop();
        }
        let (there, _) = stream.ahead();
        let now = time::now();
        if there >= target {
            break true;
        }
        if there != last {
            (last, moved) = (there, now);
        }
        if now - moved > PAUSE || now - start > LONGEST {
            break false;
        }
    };
    state.note_attempt(gathered);
}
