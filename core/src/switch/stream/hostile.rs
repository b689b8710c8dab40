//! Two ends into whose shared memory somebody writes anything. Each call comes back, with bytes or with the end of the
//! connection. This is for tests, and for fuzzing.

use super::test_ends::Ends;
use super::Broken;
use super::Moved;
use super::Stream;
use super::Take;
use crate::provider::shm::Part;
use crate::session::transfer::Call;
use crate::session::{Control, Mode};
use crate::switch::buffers::Buffers;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Where the numbers of a run come from: they are all there is to it.
pub(super) enum Rng<'a> {
    /// SplitMix64, from a seed.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests have seeds"))]
    Seed(u64),
    /// Bytes; zeroes behind them.
    Bytes(&'a [u8]),
}

impl Rng<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let Rng::Bytes(rest) = self else { return None };
        let mut some = [0; N];
        let n = N.min(rest.len());
        let (now, after) = rest.split_at(n);
        some[..n].copy_from_slice(now);
        *rest = after;
        Some(some)
    }

    fn next(&mut self) -> u64 {
        if let Rng::Seed(state) = self {
            *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = *state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            return z ^ (z >> 31);
        }
        self.bytes().map(u64::from_le_bytes).unwrap_or_default()
    }

    fn below(&mut self, n: usize) -> usize {
        let number = match self {
            Rng::Seed(_) => self.next(),
            Rng::Bytes(_) if n <= 256 => self.bytes::<1>().map_or(0, |[byte]| byte.into()),
            Rng::Bytes(_) => self.bytes().map_or(0, |bytes| u32::from_le_bytes(bytes).into()),
        };
        (number % n as u64) as usize
    }

    fn is_over(&self) -> bool {
        matches!(self, Rng::Bytes([]))
    }
}

/// Changes a word: positions, counters and flags lie in the first kilobyte, and what is not zero behind it is messages.
fn scribble(words: &[AtomicU32], rng: &mut Rng<'_>) {
    // The first line was read when the memory was mapped, and never again.
    const FIRST: usize = 16;
    const HEAD: usize = 256;
    let at = match rng.below(4) {
        0 | 1 => FIRST + rng.below(HEAD - FIRST),
        2 => FIRST + rng.below(words.len() - FIRST),
        _ => {
            let from = HEAD + rng.below(words.len() - HEAD);
            let mut near = from..words.len().min(from + 1000);
            let used = near.find(|at| words[*at].load(Relaxed) != 0);
            used.unwrap_or(FIRST)
        }
    };
    let word = &words[at];
    let before = word.load(Relaxed);
    let after = match rng.below(6) {
        0 => rng.next() as u32,
        1 => 0,
        2 => u32::MAX,
        3 => before.wrapping_add(1),
        4 => before.wrapping_sub(rng.below(70_000) as u32),
        _ => before ^ 1 << rng.below(32),
    };
    word.store(after, Relaxed);
}

fn buffer(bytes: &mut [u8]) -> [libc::iovec; 1] {
    [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }]
}

fn send(end: &Stream, bytes: &mut [u8]) -> Result<Moved, Broken> {
    let one = buffer(bytes);
    let _held = end.lock_send().unwrap();
    end.send(&mut Buffers::new(&one).unwrap())
}

fn receive(end: &Stream, bytes: &mut [u8], take: Take, directly: bool) -> Result<Moved, Broken> {
    let one = buffer(bytes);
    let call = if directly { end.call(bytes.len(), true) } else { Call { number: 0, directly } };
    let _held = end.lock_receive().unwrap();
    end.receive(&mut Buffers::new(&one).unwrap(), take, call)
}

/// One call on one end; an error ends the connection.
fn one_call(end: &Stream, bytes: &mut [u8], rng: &mut Rng<'_>) -> Result<(), Broken> {
    let length = if rng.below(3) == 0 { rng.below(bytes.len()) } else { rng.below(4000) };
    let bytes = &mut bytes[..length];
    match rng.below(16) {
        0..=3 => {
            let moved = send(end, bytes)?;
            assert!(moved.bytes <= length);
        }
        4..=6 => {
            let moved = receive(end, bytes, Take::Consume, rng.below(2) == 0)?;
            assert!(moved.bytes <= length);
        }
        7 => drop(receive(end, bytes, Take::Peek, false)?),
        8 => drop(receive(end, bytes, Take::Discard, false)?),
        9 => {
            let _held = end.lock_receive().unwrap();
            end.available()?;
        }
        10 => {
            let _ = (end.peek_readable(), end.has_space(), end.unsent(), end.peer_consumed_all());
            let _ = (end.arrival_stamp(), end.activity_of_peer(), end.ahead(), end.owes_ring());
            let _ = end.will_be_written(length);
        }
        11 => end.ring_by(|| ()),
        12 => end.shrink_if_idle(),
        13 => {
            end.endpoint.due.note(&Control::EnterMode(Mode::SmallReceive, false));
            let _held = end.lock_send().unwrap();
            end.send_due_now();
        }
        14 => {
            let ticket = end.own().counters.0.read.raise();
            end.signal_read();
            end.own().counters.0.read.withdraw(ticket);
        }
        _ => {
            end.look_for_request();
            end.look_for_suspension()?;
            end.try_answer_suspension();
        }
    }
    Ok(())
}

/// Runs a connection whose memory is written to between calls. True if it ended.
pub(super) fn run(mut rng: Rng<'_>) -> bool {
    let ends = Ends::new();
    let words = ends.left.segment.words();
    let mut bytes = vec![0u8; 100_000];
    let calls = 100 + rng.below(300);
    // How often, and from when on.
    let (rate, first) = (1 + rng.below(8), rng.below(60));
    let mut ended = [false; 2];
    for i in 0..calls {
        if rng.is_over() {
            break;
        }
        if i >= first && rng.below(rate) == 0 {
            scribble(words, &mut rng);
        }
        let which = rng.below(2);
        let end = [&ends.left, &ends.right][which];
        if !ended[which] {
            ended[which] = one_call(end, &mut bytes, &mut rng).is_err();
        }
    }
    // Gives back what is left of it, wherever it lies.
    for (end, ended) in [&ends.left, &ends.right].into_iter().zip(ended) {
        if !ended {
            let mut fruitful = 0;
            while receive(end, &mut bytes, Take::Consume, false).is_ok_and(|m| m.bytes > 0) {
                fruitful += 1;
                assert!(fruitful < 10_000, "bytes without end");
            }
        }
        end.segment.free_send_buffers(end.role);
        let _ = end.segment.provide(end.role, Part::SendBuffer);
    }
    // SAFETY: neither is used any more.
    unsafe { ends.discard() };
    ended.contains(&true)
}

/// Runs a connection. These bytes say how its memory is written to, and which calls are made.
pub(crate) fn fuzz_words(data: &[u8]) {
    run(Rng::Bytes(data));
}
