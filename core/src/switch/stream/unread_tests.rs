//! What an end sends again over TCP, where its peer is in the middle of a receive, and where the peer lies about that.

use super::tests::{receive, send, Ends};
use super::Stream;
use std::sync::atomic::Ordering::Relaxed;

/// The bytes that this end sends again by itself.
fn pulled(end: &Stream) -> Vec<u8> {
    let _held = end.lock_send().unwrap();
    let counted = end.note_pulled().unwrap();
    let mut bytes = Vec::new();
    end.each_unread(end.pulled(), |piece| {
        bytes.extend_from_slice(piece);
        true
    })
    .unwrap();
    assert_eq!(bytes.len() as u64, counted);
    bytes
}

#[test]
fn what_the_peer_has_taken_and_not_counted_yet_is_not_sent_again() {
    let Ends { left, right } = Ends::new();
    // It goes through the send buffer, so that few messages are sent.
    assert_eq!(send(&left, &[1; 40_000]).bytes, 40_000);
    let counted = receive(&right, 10_000).0.len() as u64;
    receive(&right, 30_000);
    right.own().receiving.0.total.store(counted, Relaxed);
    send(&left, &[2; 8]);
    assert!(left.endpoint.session.last_sent() < 16, "no message was overwritten");
    assert_eq!(pulled(&left), [2; 8]);
}

#[test]
fn a_position_before_the_first_byte_makes_nothing_overflow() {
    let Ends { left, right } = Ends::new();
    right.own().receiving.0.head.store(u64::MAX - 3, Relaxed);
    right.stop_reading();
    let _held = left.lock_send().unwrap();
    let mut bytes = 0;
    let sent = left.each_unread(left.recalled(), |piece| {
        bytes += piece.len();
        true
    });
    assert!(sent.is_ok() && bytes < 16, "{bytes} bytes, {sent:?}");
}
