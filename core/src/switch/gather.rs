//! Letting data gather before it is read, where a stream flows.
//!
//! A receiver that keeps up with its sender reads every line while it is still dirty in the
//! sender's cache, which costs several times what it costs once the line has moved on. So
//! where a sender has filled the large send buffer, a receiver that caught up lets it get ahead once,
//! by more than a core's own cache holds; from then on both work at full speed. Must
//! not wait for a sender that does not send.

use super::spin;
use super::stream::Stream;
use crate::sys::time;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// A pause in the flow that ends the gathering, in nanoseconds.
const PAUSE: u64 = 20_000;
/// The longest gathering, in nanoseconds.
const LONGEST: u64 = 1_000_000;
/// Receives between two attempts: after one that worked, and most after several that did not.
const FEWEST: u32 = 16;
const MOST: u32 = 1 << 16;

/// See the module. Zeroed memory is a valid start. Receive lock.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Gather {
    /// Receives until the next attempt may be made.
    after: AtomicU32,
    /// How many that will be after an attempt that fails.
    pause: AtomicU32,
}

/// Before a receive of `wanted` bytes: lets a sender that streams get ahead.
#[inline]
pub(super) fn gather(stream: &Stream, wanted: usize) {
    if stream.streams_in() {
        let_gather(stream, wanted);
    }
}

#[cold]
fn let_gather(stream: &Stream, wanted: usize) {
    let state = &stream.endpoint.receive.gather;
    let (there, target) = stream.ahead();
    if there >= (wanted as u64).min(target / 4) || target == 0 {
        return;
    }
    let after = state.after.load(Relaxed);
    if after > 0 {
        state.after.store(after - 1, Relaxed);
        return;
    }
    if spin::is_alone() {
        state.after.store(MOST, Relaxed);
        return;
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
    let pause = if gathered {
        FEWEST
    } else {
        state.pause.load(Relaxed).saturating_mul(2).clamp(FEWEST, MOST)
    };
    state.pause.store(pause, Relaxed);
    state.after.store(pause, Relaxed);
}
