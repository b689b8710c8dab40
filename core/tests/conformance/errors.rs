//! What goes wrong, and the end of queue pairs.

use crate::side::*;
use crate::{suite, Setting, Trait};
use sanshim_core::provider::interface::*;

fn a_message_too_large_for_its_buffer_ends_the_queue_pairs(setting: &Setting) {
    let (a, b) = setting.connected();
    b.post(1, 0, 8);
    b.post(2, 0, 8);
    a.buffer.fill(0, &[9; 16]);
    a.send(10, 0, 16);
    // Soft-RoCE does not tell the two apart.
    let error = b.expect(RequestKind::Receive, 1).unwrap_err();
    assert!(matches!(error, Error::BufferOverflow | Error::LocalAccess), "{error}");
    assert_eq!(b.expect(RequestKind::Receive, 2), Err(Error::Cancelled));
    if setting.has(Trait::Holds) {
        assert!(a.expect(RequestKind::Send, 10).is_err());
    }
    assert_eq!(b.buffer.bytes(8, 8), [0; 8], "nothing beyond the buffer");
}

fn a_flush_cancels_what_is_posted(setting: &Setting) {
    let (_a, b) = setting.connected();
    for i in 0..3 {
        b.post(i, 0, 8);
    }
    b.pair.flush().unwrap();
    for i in 0..3 {
        assert_eq!(b.expect(RequestKind::Receive, i), Err(Error::Cancelled));
    }
    // Each later request ends the same way, at once or as a completion.
    let segment = b.buffer.segment(0, 8);
    let received = b.pair.receive(7, &[segment]);
    let received = received.and_then(|()| b.expect(RequestKind::Receive, 7));
    assert_eq!(received, Err(Error::Cancelled));
    let sent = b.pair.send(8, &[segment], Flags::NONE);
    assert_eq!(sent.and_then(|()| b.expect(RequestKind::Send, 8)), Err(Error::Cancelled));
}

fn a_disconnect_cancels_at_both_ends(setting: &Setting) {
    let (a, b) = setting.connected();
    a.post(1, 0, 8);
    b.post(2, 0, 8);
    assert_eq!(b.connector.notify_disconnect(3), Ok(Started::Pending));
    finish(a.connector.disconnect(4), &a.connector, 4).unwrap();
    assert_eq!(a.expect(RequestKind::Receive, 1), Err(Error::Cancelled));
    assert_eq!(reported(&b.connector), Reported { request: 3, result: Ok(()) });
    assert_eq!(b.expect(RequestKind::Receive, 2), Err(Error::Cancelled));
}

fn what_was_sent_before_a_disconnect_arrives(setting: &Setting) {
    let (a, b) = setting.connected();
    b.post(1, 0, 8);
    a.buffer.fill(0, b"farewell");
    a.send(2, 0, 8);
    assert_eq!(a.expect(RequestKind::Send, 2), Ok(0));
    finish(a.connector.disconnect(4), &a.connector, 4).unwrap();
    assert_eq!(b.expect(RequestKind::Receive, 1), Ok(8));
    assert_eq!(b.buffer.bytes(0, 8), b"farewell");
}

fn nothing_is_sent_without_a_connection(setting: &Setting) {
    let (a, _) = setting.adapters();
    let a = Side::new(&a, 1, None);
    let sent = a.pair.send_inline(1, b"x", Flags::NONE);
    assert_eq!(sent, Err(Error::NotConnected));
}

fn limits_are_kept(setting: &Setting) {
    let (a, _) = setting.adapters();
    let limits = a.query();
    assert!(limits.max_message >= 4096 && limits.max_segments >= 2 && limits.max_inline >= 32);
    let queue = a.create_completion_queue(8).unwrap();
    let refused = |change: fn(&mut QueuePairAttributes, &Limits)| {
        let mut wanted = attributes(1);
        change(&mut wanted, &limits);
        a.create_queue_pair(&wanted, &queue, &queue, None).err()
    };
    let expected = Some(Error::InvalidParameter);
    assert_eq!(refused(|w, l| w.receive_depth = l.max_receive_depth + 1), expected);
    assert_eq!(refused(|w, l| w.initiator_depth = l.max_initiator_depth + 1), expected);
    assert_eq!(refused(|w, l| w.segments = l.max_segments + 1), expected);
    assert_eq!(refused(|w, l| w.inline_size = l.max_inline + 1), expected);
    let depth = limits.max_completion_depth + 1;
    assert_eq!(a.create_completion_queue(depth).err(), expected);
    assert_eq!(a.create_completion_queue(0).err(), expected);
}

fn no_more_is_posted_than_agreed(setting: &Setting) {
    let (_a, b) = setting.connected();
    for i in 0..DEPTH {
        b.post(i.into(), 0, 8);
    }
    let segment = b.buffer.segment(0, 8);
    let mut more = 0;
    // A device may round a queue's size up, not make it endless.
    while b.pair.receive(99, &[segment]).is_ok() {
        more += 1;
        assert!(more < 16 * DEPTH);
    }
    assert_eq!(b.pair.receive(99, &[segment]), Err(Error::InsufficientResources));
    let many = vec![segment; b.adapter.query().max_segments as usize + 1];
    assert_eq!(b.pair.send(1, &many, Flags::NONE), Err(Error::InvalidParameter));
}

suite! {
    a_message_too_large_for_its_buffer_ends_the_queue_pairs
    a_flush_cancels_what_is_posted
    a_disconnect_cancels_at_both_ends
    what_was_sent_before_a_disconnect_arrives
    nothing_is_sent_without_a_connection
    limits_are_kept
    no_more_is_posted_than_agreed
}
