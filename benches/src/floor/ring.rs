//! A flow in one direction over a ring of slots. Each byte is copied twice, and each slot has a sequence word.
//!
//! A write larger than a chunk takes several slots, so that both copies run at the same time.

use super::memory::SharedMapping;
use crate::error::BenchError;
use crate::options::Options;
use crate::process;
use crate::report::{self, Subject};
use crate::spin::Spin;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Offset of the number of slots that the receiver has given back.
const CONSUMED: usize = 0;
/// Offset of the number of slots sent in all, plus one. It is 0 while the sender goes on.
const TOTAL: usize = 128;
/// Offset of the number of bytes received in all, plus one. It is 0 until the receiver is done.
const DONE: usize = 256;
const SLOTS: usize = 384;

struct Ring<'a> {
    shared: &'a SharedMapping,
    spin: Spin,
    slots: u64,
    stride: usize,
    chunk: usize,
}

/// Bytes of a slot, which is the word and the payload. Small ones are packed, others take whole cache lines.
fn stride(chunk: usize) -> usize {
    (8 + chunk).next_multiple_of(if chunk <= 56 { 16 } else { 64 })
}

impl Ring<'_> {
    #[inline]
    fn slot(&self, number: u64) -> usize {
        // The number of slots is a power of two, so that the remainder is one instruction.
        SLOTS + (number & (self.slots - 1)) as usize * self.stride
    }

    /// Sends one write. `next` is the number of the next slot, and `consumed` how many the receiver is known to have
    /// given back.
    #[inline]
    fn send(&self, data: &[u8], next: &mut u64, consumed: &mut u64) {
        for piece in data.chunks(self.chunk) {
            if *next - *consumed == self.slots {
                self.spin.until(|| {
                    *consumed = self.shared.word(CONSUMED).load(Ordering::Acquire);
                    *next - *consumed < self.slots
                });
            }
            let slot = self.slot(*next);
            self.shared.copy_in(slot + 8, piece);
            *next += 1;
            self.shared.word(slot).store(*next, Ordering::Release);
        }
    }

    /// Receives everything, in writes of `size`. Gives the bytes.
    fn receive(&self, size: usize) -> u64 {
        let mut buffer = vec![0; size];
        let (mut next, mut bytes, mut total) = (0, 0, 0);
        let give_back = (self.slots / 4).max(1);
        loop {
            for piece in buffer.chunks_mut(self.chunk) {
                let slot = self.slot(next);
                self.spin.until(|| {
                    if self.shared.word(slot).load(Ordering::Acquire) == next + 1 {
                        return true;
                    }
                    total = self.shared.word(TOTAL).load(Ordering::Acquire);
                    total == next + 1
                });
                if total == next + 1 {
                    return bytes;
                }
                self.shared.copy_out(slot + 8, piece);
                bytes += piece.len() as u64;
                next += 1;
                if next % give_back == 0 {
                    self.shared.word(CONSUMED).store(next, Ordering::Release);
                }
            }
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<(), BenchError> {
    let chunk = options.size.min(options.chunk);
    let stride = stride(chunk);
    let slots = ((options.ring / stride).max(4) as u64 + 1).next_power_of_two() / 2;
    let shared = SharedMapping::new(SLOTS + slots as usize * stride)?;
    let spin = Spin::new(options.placement);
    let ring = Ring { shared: &shared, spin, slots, stride, chunk };

    let send = || {
        let data = vec![0x5a; options.size];
        let (mut next, mut consumed, mut messages) = (0, 0, 0u64);
        let per_look = (65536 / options.size).clamp(1, 1024) as u64;
        let start = Instant::now();
        let go_on = |messages: u64| match options.count {
            Some(count) => messages < count,
            None => start.elapsed() < options.length,
        };
        while go_on(messages) {
            for _ in 0..per_look {
                ring.send(&data, &mut next, &mut consumed);
            }
            messages += per_look;
        }
        shared.word(TOTAL).store(next + 1, Ordering::Release);
        let mut received = 0;
        spin.until(|| {
            received = shared.word(DONE).load(Ordering::Acquire);
            received != 0
        });
        let elapsed = start.elapsed();
        let sent = messages * options.size as u64;
        if received - 1 != sent {
            return Err(BenchError::Peer(format!("received {} of {sent} bytes", received - 1)));
        }
        Ok((messages, elapsed))
    };
    let receive = || {
        let bytes = ring.receive(options.size);
        shared.word(DONE).store(bytes + 1, Ordering::Release);
    };
    let (messages, elapsed) = process::fork_pair(options, send, receive)?;
    report::flow(Subject::Floor, options, messages, elapsed, None);
    Ok(())
}
