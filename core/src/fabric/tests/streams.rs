//! Both directions of a connection: every byte, once, in order, and the end behind it.

use super::{ends, pattern, End};
use crate::fabric::frame::{self, FrameKind, FrameState};
use crate::provider::shm::FINISHED;
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn all_bytes_arrive_once_and_in_order_whatever_the_sizes() {
    let (a, b) = ends("192.0.2.101", "192.0.2.102");
    stream_all(&a, &b);
    assert!(may_write(&a) && !may_write(&b), "only one of them streamed");
}

#[test]
fn all_bytes_arrive_once_and_in_order_over_shared_memory() {
    let (a, b) = ends("127.0.0.101", "127.0.0.102");
    stream_all(&a, &b);
}

fn stream_all(a: &End, b: &End) {
    let mut sizes = [1, 64, 1500, 1520, 1521, 4000, 16384, 40000, 65536, 3].iter().cycle();
    let (mut sent, mut received) = (0, 0);
    const TOTAL: usize = 3 << 20;
    let mut stuck = 0;
    while received < TOTAL {
        let size = (*sizes.next().unwrap()).min(TOTAL - sent);
        let took = if size == 0 { 0 } else { a.send(&pattern(sent, size)) };
        sent += took;
        let got = b.receive(*sizes.next().unwrap());
        assert_eq!(got, pattern(received, got.len()), "at {received}");
        received += got.len();
        stuck = if took + got.len() == 0 { stuck + 1 } else { 0 };
        if stuck > 0 {
            // Both are about to sleep: what each waits for must be on its way.
            a.link.before_sleep();
            b.link.before_sleep();
            a.link.poll();
        }
        assert!(stuck < 50, "{sent} bytes sent, {received} received, and nothing moves");
    }
}

/// True if the peer let this end write into its memory: it may say so once.
fn may_write(end: &End) -> bool {
    let mut again = frame::encode(FrameKind::Ring, 12, &FrameState::default()).to_vec();
    again.extend_from_slice(&[0; 12]);
    end.link.arrived(&again);
    end.link.has_failed()
}

#[test]
fn memory_is_offered_once_nothing_else_is_under_way() {
    let (a, b) = ends("192.0.2.207", "192.0.2.208");
    a.overwhelm_peer();
    a.link.note(FrameKind::Ring);
    assert!(!a.link.has_failed() && !a.link.is_drained());
    // The peer looks, and takes what was sent.
    for _ in 0..3 {
        b.link.poll();
        a.link.poll();
    }
    assert!(may_write(&b));
}

#[test]
fn both_directions_flow_at_once() {
    for [a, b] in [["192.0.2.103", "192.0.2.104"], ["127.0.0.103", "127.0.0.104"]] {
        let (a, b) = ends(a, b);
        flow_both_ways(&a, &b);
    }
}

fn flow_both_ways(a: &End, b: &End) {
    let (mut to_b, mut to_a, mut at_b, mut at_a) = (0, 0, 0, 0);
    for round in 0..2000 {
        let size = 1 + round * 37 % 5000;
        to_b += a.send(&pattern(to_b, size));
        to_a += b.send(&pattern(to_a, 5001 - size));
        let (got_b, got_a) = (b.receive(6000), a.receive(7000));
        assert_eq!(got_b, pattern(at_b, got_b.len()));
        assert_eq!(got_a, pattern(at_a, got_a.len()));
        (at_b, at_a) = (at_b + got_b.len(), at_a + got_a.len());
    }
    assert!(at_a > 1 << 20 && at_b > 1 << 20, "{at_a} {at_b}");
}

/// A thread that takes what arrives offers memory between the receive of another thread and the word of that receive. Then
/// nothing more is due: the sender would wait for room for ever.
#[test]
fn a_frame_of_any_kind_tells_what_its_sender_has_read() {
    let (a, b) = ends("192.0.2.205", "192.0.2.206");
    let sent = a.send(&pattern(0, 1 << 17)) as u64;
    assert_eq!(a.send(b"more"), 0, "there is no room");
    let state = FrameState { head: sent, total: sent, ..FrameState::default() };
    let mut ring = frame::encode(FrameKind::Ring, 12, &state).to_vec();
    ring.extend_from_slice(&[0; 12]);
    a.link.arrived(&ring);
    assert_eq!(a.send(b"more"), 4);
    drop(b);
}

#[test]
fn an_end_comes_after_the_last_byte() {
    let (a, b) = ends("192.0.2.105", "192.0.2.106");
    let sent = a.send(&pattern(0, 60_000));
    assert_eq!(sent, 60_000);
    a.stream().own().sending.0.finished.fetch_or(FINISHED, SeqCst);
    a.link.ring();
    let mut received = 0;
    while received < sent {
        let end = b.finished() & FINISHED;
        let got = b.receive(1000);
        assert!(!got.is_empty() || end == 0, "the end came before {received}");
        received += got.len();
    }
    assert_eq!(b.finished() & FINISHED, FINISHED);
    assert_eq!(b.receive(10), b"");
}

#[test]
fn links_go_on_while_silent_ones_keep_most_of_a_port() {
    let (a, b) = ends("192.0.2.119", "192.0.2.120");
    let port = a.link.port();
    // What idle links keep: sends that were never told to be over.
    while port.device.announce_send() {}
    port.device.sent(4);
    for round in 0..100 {
        assert_eq!(a.send(&pattern(round, 1)), 1);
        a.link.poll();
        assert_eq!(b.receive(1), pattern(round, 1), "{round}");
    }
}
