//! A message there and back. Each message has a sequence word, and is copied in and out once in each direction.

use super::memory::SharedMapping;
use crate::error::BenchError;
use crate::options::Options;
use crate::report::{self, Subject};
use crate::spin::Spin;
use crate::{process, stats};
use std::sync::atomic::Ordering;

/// The word that says that no more comes. No run gets to this number.
const END: u64 = u64::MAX;

/// One direction. The payload is right behind the sequence word, so that a small message is one cache line.
struct Slot<'a> {
    shared: &'a SharedMapping,
    offset: usize,
    spin: Spin,
}

impl Slot<'_> {
    #[inline]
    fn send(&self, sequence: u64, data: &[u8]) {
        self.shared.copy_in(self.offset + 8, data);
        self.shared.word(self.offset).store(sequence, Ordering::Release);
    }

    /// False at the end.
    #[inline]
    fn receive(&self, sequence: u64, data: &mut [u8]) -> bool {
        let word = self.shared.word(self.offset);
        let mut seen = 0;
        self.spin.until(|| {
            seen = word.load(Ordering::Acquire);
            seen == sequence || seen == END
        });
        if seen == END {
            return false;
        }
        self.shared.copy_out(self.offset + 8, data);
        true
    }
}

pub(crate) fn run(options: &Options) -> Result<(), BenchError> {
    // The directions are two cache lines apart, because processors fetch the neighbour of a line too.
    let span = (8 + options.size).next_multiple_of(64) + 128;
    let shared = SharedMapping::new(2 * span)?;
    let spin = Spin::new(options.placement);
    let there = Slot { shared: &shared, offset: 0, spin };
    let back = Slot { shared: &shared, offset: span, spin };

    let measured = || {
        let out = vec![0x5a; options.size];
        let mut into = vec![0; options.size];
        let mut sequence = 0;
        let summary = stats::measure(options, || {
            sequence += 1;
            there.send(sequence, &out);
            back.receive(sequence, &mut into);
            Ok(())
        });
        shared.word(0).store(END, Ordering::Release);
        if into != out {
            return Err(BenchError::Peer("the echo differs from what was sent".into()));
        }
        summary
    };
    let echo = || {
        let mut buffer = vec![0; options.size];
        let mut sequence = 1;
        while there.receive(sequence, &mut buffer) {
            back.send(sequence, &buffer);
            sequence += 1;
        }
    };
    let summary = process::fork_pair(options, measured, echo)?;
    report::latency(Subject::Floor, options, &summary);
    Ok(())
}
