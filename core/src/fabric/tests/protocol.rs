//! A peer that breaks the protocol fails its own link.

use super::{ends, pattern};
use crate::fabric::frame::{self, FrameKind, FrameState};

#[test]
fn a_peer_that_breaks_the_protocol_fails_its_own_link() {
    let state = FrameState::default();
    let frame = |kind, payload: &[u8]| {
        let mut frame = frame::encode(kind, payload.len(), &state).to_vec();
        frame.extend_from_slice(payload);
        frame
    };
    let mut second = [0u8; 16];
    second[0] = 99;
    for (good, bytes) in [
        (true, frame(FrameKind::State, b"")),
        (true, frame(FrameKind::Bytes, &[7; 1000])),
        (false, Vec::new()),
        (false, vec![255; 64]),
        (false, frame(FrameKind::Message, &[0; 15])),
        (false, frame(FrameKind::Message, &second)),
        (false, frame(FrameKind::Entered, b"")),
        (false, frame(FrameKind::Refused, b"")),
        (true, frame(FrameKind::Withdraw, b"")),
        (false, frame(FrameKind::Turned, &[0; 7])),
        (true, frame(FrameKind::Ring, &[0; 12])),
        (false, frame(FrameKind::Ring, &[0; 11])),
        (false, frame(FrameKind::Written, &[1, 0, 0, 0])),
    ] {
        let (a, b) = ends("192.0.2.115", "192.0.2.116");
        b.link.arrived(&bytes);
        assert_eq!(b.link.has_failed(), !good, "{bytes:?}");
        drop(a);
    }
    let (_a, b) = ends("192.0.2.115", "192.0.2.116");
    b.link.peer_wrote(1);
    assert!(b.link.has_failed(), "it may not write yet");
    let (_a, b) = ends("192.0.2.115", "192.0.2.116");
    for sent in 0..5 {
        b.link.arrived(&frame(FrameKind::Bytes, &[7; 16_000]));
        assert_eq!(b.link.has_failed(), sent == 4, "more than the send buffer holds");
    }
}

#[test]
fn a_peer_that_may_write_cannot_say_that_it_wrote_more_than_there_is_room() {
    let counts = [(true, 1u32 << 16), (false, (1 << 16) + 1), (false, u32::MAX)];
    for ((good, count), by_frame) in counts.into_iter().flat_map(|one| [(one, true), (one, false)])
    {
        let (a, b) = ends("192.0.2.117", "192.0.2.118");
        let mut received = 0;
        while received < 4 << 16 {
            a.link.poll();
            a.send(&pattern(0, 20_000));
            received += b.receive(20_000).len();
            b.link.before_sleep();
        }
        while !b.receive(20_000).is_empty() {}
        let mut frame = frame::encode(FrameKind::Written, 4, &FrameState::default()).to_vec();
        frame.extend_from_slice(&count.to_le_bytes());
        match by_frame {
            true => b.link.arrived(&frame),
            false => b.link.peer_wrote(count),
        }
        assert_eq!(b.link.has_failed(), !good, "{count}");
    }
}

#[test]
fn a_move_that_was_not_asked_for_fails_the_link() {
    for (kind, payload) in
        [(FrameKind::Moved, &[][..]), (FrameKind::Move, &[0; 17]), (FrameKind::Move, &[])]
    {
        let (_a, b) = ends("192.0.2.125", "192.0.2.126");
        let mut frame = frame::encode(kind, payload.len(), &FrameState::default()).to_vec();
        frame.extend_from_slice(payload);
        b.link.arrived(&frame);
        assert!(b.link.has_failed(), "{kind:?} of {}", payload.len());
    }
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    /// Small numbers, and ones near the largest.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(4),
            1 => u64::MAX - self.below(4),
            2 => self.below(70_000),
            _ => self.below(u64::MAX),
        }
    }
}

/// Frames of every kind, with any content, among an end's own calls.
#[test]
fn whatever_frames_come_the_link_goes_on_or_has_failed() {
    const LINKS: u64 = 300;
    let mut failed = 0;
    for seed in 0..LINKS {
        let mut rng = Rng(seed);
        let (a, b) = ends("192.0.2.145", "192.0.2.146");
        for _ in 0..40 {
            let state = FrameState {
                head: rng.number(),
                total: rng.number(),
                finished: rng.below(8) as u32,
                stalled: rng.below(2) as u32,
            };
            let kind = 1 + rng.below(19) as u32;
            let length = [0, 4, 8, 12, 16, 18, 64, 2000][rng.below(8) as usize];
            let mut frame = frame::encode(FrameKind::State, length, &state).to_vec();
            frame[..4].copy_from_slice(&kind.to_le_bytes());
            frame.extend((0..length).map(|_| rng.number() as u8));
            b.link.arrived(&frame);
            if b.link.has_failed() {
                failed += 1;
                break;
            }
            let _ = (b.stream().available(), b.stream().has_space());
            b.link.poll();
        }
        drop(a);
    }
    assert!(failed > LINKS / 2, "{failed}: hardly any frame was nonsense");
}
