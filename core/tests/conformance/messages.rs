//! Messages (S1, S2, A1) and notification (N4).

use crate::buffer::pattern;
use crate::side::*;
use crate::{suite, Setting, Trait};
use sanshim_core::provider::interface::client::Overlapped;
use sanshim_core::provider::interface::*;

fn messages_of_all_sizes_arrive_whole(setting: &Setting) {
    let (a, b) = setting.connected();
    let largest = (a.adapter.query().max_message as usize).min(200_000);
    for (i, size) in [1, 31, 32, 33, 1500, 4095, 4096, 4097, largest].into_iter().enumerate() {
        let sent = pattern(i as u64, size);
        a.buffer.fill(0, &sent);
        b.post(10, 0, size);
        a.send(20, 0, size);
        assert_eq!(b.expect(RequestKind::Receive, 10), Ok(size as u32));
        assert_eq!(a.expect(RequestKind::Send, 20), Ok(0));
        assert!(b.buffer.bytes(0, size) == sent, "message of {size} bytes");
    }
}

fn segments_are_gathered_and_scattered(setting: &Setting) {
    let (a, b) = setting.connected();
    a.buffer.fill(0, b"abc");
    a.buffer.fill(100, b"defgh");
    b.pair.receive(1, &[b.buffer.segment(0, 2), b.buffer.segment(50, 20)]).unwrap();
    let from = [a.buffer.segment(0, 3), a.buffer.segment(100, 5)];
    a.pair.send(2, &from, Flags::NONE).unwrap();
    assert_eq!(b.expect(RequestKind::Receive, 1), Ok(8));
    assert_eq!(b.buffer.bytes(0, 2), b"ab");
    assert_eq!(b.buffer.bytes(50, 6), b"cdefgh");
}

fn inline_bytes_are_taken_at_once(setting: &Setting) {
    let (a, b) = setting.connected();
    let mut bytes = *b"at once";
    let is_held = setting.has(Trait::Holds);
    if !is_held {
        b.post(2, 0, 64);
    }
    a.pair.send_inline(1, &bytes, Flags::NONE).unwrap();
    bytes.fill(0);
    if is_held {
        b.post(2, 0, 64);
    }
    assert_eq!(b.expect(RequestKind::Receive, 2), Ok(7));
    assert_eq!(b.buffer.bytes(0, 7), b"at once");
    assert_eq!(a.expect(RequestKind::Send, 1), Ok(0));
    let too_large = a.pair.send_inline(3, &[0; 4096], Flags::NONE);
    assert_eq!(too_large, Err(Error::InvalidParameter));
}

fn a1_a_message_before_its_receive_is_held(setting: &Setting) {
    let (a, b) = setting.connected();
    for i in 0..4u8 {
        a.buffer.fill(i.into(), &[i]);
        a.send(i.into(), i.into(), 1);
    }
    for i in 0..4u8 {
        b.post(i.into(), 0, 1);
        assert_eq!(b.expect(RequestKind::Receive, i.into()), Ok(1));
        assert_eq!(b.buffer.bytes(0, 1), [i]);
    }
    for i in 0..4 {
        assert_eq!(a.expect(RequestKind::Send, i), Ok(0));
    }
}

fn silent_sends_complete_with_a_later_one(setting: &Setting) {
    let (a, b) = setting.connected();
    for round in 0..20 {
        for i in 0..4 {
            b.post(i, 0, 8);
            let flags = if i < 3 { Flags::SILENT } else { Flags::NONE };
            a.pair.send(round * 4 + i, &[a.buffer.segment(0, 8)], flags).unwrap();
        }
        for i in 0..4 {
            assert_eq!(b.expect(RequestKind::Receive, i), Ok(8));
        }
        assert_eq!(a.expect(RequestKind::Send, round * 4 + 3), Ok(0));
    }
    assert_eq!(a.queue.get_results(&mut [Completion::default()]), Ok(0));
}

fn both_directions_keep_their_order(setting: &Setting) {
    const MESSAGES: u64 = 500;
    const SIZE: usize = 64;
    let (a, b) = setting.connected();
    let ends = [&a, &b];
    let (mut sent, mut received, mut completed) = ([0u64; 2], [0u64; 2], [0u64; 2]);
    for end in ends {
        for i in 0..u64::from(DEPTH) {
            end.post(i, i as usize * SIZE, SIZE);
        }
    }
    let half = BUFFER / 2;
    while received.iter().any(|&r| r < MESSAGES) || completed.iter().any(|&c| c < MESSAGES) {
        for (i, end) in ends.iter().enumerate() {
            // Credit: as many on the way as receives are posted there.
            while sent[i] < MESSAGES
                && sent[i] - received[1 - i] < DEPTH.into()
                && sent[i] - completed[i] < DEPTH.into()
            {
                let place = half + (sent[i] % u64::from(DEPTH)) as usize * SIZE;
                end.buffer.fill(place, &pattern(sent[i] + i as u64, SIZE));
                end.send(1000 + sent[i], place, SIZE);
                sent[i] += 1;
            }
            let mut some = [Completion::default(); 16];
            let count = end.queue.get_results(&mut some).unwrap();
            for completion in &some[..count] {
                assert_eq!(completion.status, 0, "{completion:?}");
                assert_eq!(completion.queue_pair, i as u64 + 1);
                if completion.kind() == RequestKind::Send {
                    assert_eq!(completion.request, 1000 + completed[i]);
                    completed[i] += 1;
                    continue;
                }
                let slot = received[i] % u64::from(DEPTH);
                assert_eq!(completion.request, slot);
                let expected = pattern(received[i] + 1 - i as u64, SIZE);
                assert!(end.buffer.bytes(slot as usize * SIZE, SIZE) == expected);
                received[i] += 1;
                end.post(slot, slot as usize * SIZE, SIZE);
            }
        }
        std::thread::yield_now();
    }
}

fn a_shared_receive_queue_serves_several_queue_pairs(setting: &Setting) {
    let (a, b) = setting.adapters();
    let shared = b.create_shared_receive_queue(16).unwrap();
    let listener = setting.listener(&b);
    let ends: Vec<_> = (0..3u64)
        .map(|i| {
            let (a, b) = (Side::new(&a, i, None), Side::new(&b, 100 + i, Some(&shared)));
            connect(&a, &b, &listener);
            (a, b)
        })
        .collect();
    let pool = crate::buffer::Buffer::new(&b, 4096);
    for i in 0..6 {
        shared.receive(i, &[pool.segment(i as usize * 64, 64)]).unwrap();
    }
    for (i, (a, b)) in ends.iter().enumerate() {
        a.buffer.fill(0, &[i as u8 + 1; 64]);
        a.send(1, 0, 64);
        let got = b.completion();
        assert_eq!((got.result(), got.queue_pair), (Ok(64), 100 + i as u64));
        assert_eq!(pool.bytes(got.request as usize * 64, 64), [i as u8 + 1; 64]);
        assert_eq!(a.expect(RequestKind::Send, 1), Ok(0));
    }
}

/// A queue pair may take with it what was not taken from the queue when it is closed. A client that takes it before has all
/// buffers of a shared receive queue back.
fn a_queue_pair_that_was_flushed_leaves_the_shared_buffers(setting: &Setting) {
    const BUFFERS: u64 = 2;
    let (a, b) = setting.adapters();
    let shared = b.create_shared_receive_queue(16).unwrap();
    let listener = setting.listener(&b);
    let pool = crate::buffer::Buffer::new(&b, 4096);
    let post = |i: u64| shared.receive(i, &[pool.segment(i as usize * 64, 64)]).unwrap();
    (0..BUFFERS).for_each(post);
    for round in 0..3 * BUFFERS {
        let (a, b) = (Side::new(&a, round, None), Side::new(&b, 100 + round, Some(&shared)));
        connect(&a, &b, &listener);
        a.send(1, 0, 64);
        // Over shared memory a message has no buffer before it is taken.
        if setting.name != "shm" {
            assert_eq!(a.expect(RequestKind::Send, 1), Ok(0), "round {round}");
        }
        b.pair.flush().unwrap();
        for _ in 0..20 {
            let mut one = [Completion::default()];
            while b.queue.get_results(&mut one).unwrap() == 1 {
                post(one[0].request);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    let (a, b) = (Side::new(&a, 99, None), Side::new(&b, 199, Some(&shared)));
    connect(&a, &b, &listener);
    for i in 0..BUFFERS {
        a.send(i, 0, 64);
    }
    let got: std::collections::HashSet<_> = (0..BUFFERS).map(|_| b.completion().request).collect();
    assert_eq!(got.len() as u64, BUFFERS);
}

fn n4_only_what_was_asked_for_is_notified(setting: &Setting) {
    let (a, b) = setting.connected();
    b.post(1, 0, 8);
    b.post(2, 0, 8);
    a.send(10, 0, 8);
    assert_eq!(b.expect(RequestKind::Receive, 1), Ok(8));
    assert_eq!(b.queue.next_result(), None, "nobody asked");
    assert_eq!(b.queue.notify(5), Ok(Started::Pending));
    assert_eq!(b.queue.get_results(&mut [Completion::default()]), Ok(0));
    assert!(!is_readable(b.queue.descriptor()));
    a.send(11, 0, 8);
    assert_eq!(reported(&b.queue), Reported { request: 5, result: Ok(()) });
    assert_eq!(b.queue.next_result(), None, "once");
    assert!(!is_readable(b.queue.descriptor()));
    assert_eq!(b.expect(RequestKind::Receive, 2), Ok(8));
}

fn n4_a_notification_can_be_cancelled(setting: &Setting) {
    let (a, b) = setting.connected();
    assert_eq!(b.queue.notify(5), Ok(Started::Pending));
    b.queue.cancel();
    assert_eq!(reported(&b.queue), Reported { request: 5, result: Err(Error::Cancelled) });
    b.post(1, 0, 8);
    a.send(10, 0, 8);
    assert_eq!(b.expect(RequestKind::Receive, 1), Ok(8));
}

suite! {
    messages_of_all_sizes_arrive_whole
    segments_are_gathered_and_scattered
    inline_bytes_are_taken_at_once
    silent_sends_complete_with_a_later_one
    both_directions_keep_their_order
    a_shared_receive_queue_serves_several_queue_pairs
    a_queue_pair_that_was_flushed_leaves_the_shared_buffers
    n4_only_what_was_asked_for_is_notified
    n4_a_notification_can_be_cancelled
    ; Holds:
    a1_a_message_before_its_receive_is_held
}
