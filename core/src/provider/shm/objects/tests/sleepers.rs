//! Who sleeps is rung, once, and nobody else.

use super::*;

#[test]
fn nobody_is_rung_who_does_not_sleep() {
    let (a, b) = joined();
    b.pair.receive(1, &[b.segment(0, 64)]).unwrap();
    a.pair.send_inline(1, b"x", Flags::NONE).unwrap();
    let doorbell = b.state().channel.get().unwrap().doorbell();
    assert_eq!(poll::poll_one(doorbell, libc::POLLIN), Ok(0));
    assert_eq!(b.results().len(), 1);
    let _ = b.queue.notify(1).unwrap();
    assert_eq!(b.end().sleeping.0.armed.load(Relaxed), MESSAGES);
    a.pair.send_inline(2, b"x", Flags::NONE).unwrap();
    assert_eq!(poll::poll_one(doorbell, libc::POLLIN), Ok(libc::POLLIN));
    // One ring for each time that it is armed.
    assert_eq!(b.end().sleeping.0.armed.load(Relaxed), 0);
    assert_eq!(b.queue.next_result(), None, "there is no buffer for it");
    assert_eq!(b.end().sleeping.0.armed.load(Relaxed), MESSAGES);
    b.pair.receive(2, &[b.segment(0, 64)]).unwrap();
    assert_eq!(poll::poll_one(b.queue.descriptor(), libc::POLLIN), Ok(libc::POLLIN));
    assert_eq!(b.queue.next_result(), Some(Reported { request: 1, result: Ok(()) }));
    assert_eq!(b.results().len(), 1);
}

/// The doorbell is one for both queues: who hears it has it rung again for who waits for the other.
#[test]
fn who_waits_for_another_queue_is_woken_too() {
    let sends = LocalCompletionQueue::new(64).unwrap();
    let ((a, _), (b, _)) = (End::new(8, false), End::over(8, false, Some(&sends)));
    join(&a, &b);
    let is_readable = |queue: &LocalCompletionQueue| {
        poll::poll_one(queue.descriptor(), libc::POLLIN).unwrap() != 0
    };
    b.pair.receive(1, &[b.segment(0, 64)]).unwrap();
    b.pair.send_inline(2, b"waits for a buffer", Flags::NONE).unwrap();
    for queue in [&b.queue, &sends] {
        let _ = queue.notify(7).unwrap();
        assert_eq!(queue.get_results(&mut [Completion::default()]), Ok(0));
    }
    assert_eq!(b.end().sleeping.0.armed.load(Relaxed), MESSAGES | ACKNOWLEDGEMENTS);
    a.pair.send_inline(3, b"x", Flags::NONE).unwrap();
    assert!(is_readable(&b.queue));
    assert_eq!(b.queue.next_result(), Some(Reported { request: 7, result: Ok(()) }));
    assert_eq!(b.results().len(), 1);
    while sends.next_result().is_some() {}
    assert!(!is_readable(&sends));
    a.pair.receive(4, &[a.segment(0, 64)]).unwrap();
    assert!(is_readable(&sends), "slept over");
    assert_eq!(sends.next_result(), Some(Reported { request: 7, result: Ok(()) }));
}

/// Nothing is over for a sender whose message may go to another queue pair's buffer.
#[test]
fn a_shared_buffer_rings_nobody_before_a_message_is_taken() {
    let ((a, _), (b, shared)) = (End::new(8, false), End::new(8, true));
    join(&a, &b);
    let armed = || a.end().sleeping.0.armed.load(Relaxed);
    a.pair.send_inline(1, b"x", Flags::NONE).unwrap();
    let _ = a.queue.notify(1).unwrap();
    assert!(b.results().is_empty());
    shared.unwrap().receive(2, &[b.segment(0, 64)]).unwrap();
    assert_eq!(armed(), MESSAGES | ACKNOWLEDGEMENTS);
    assert_eq!(b.results().len(), 1);
    assert_eq!(armed(), 0);
    assert_eq!(a.queue.next_result(), Some(Reported { request: 1, result: Ok(()) }));
    assert_eq!(a.results().len(), 1);
}

#[test]
fn what_is_to_be_rung_for_is_added_to_what_was() {
    let (a, b) = joined();
    let _ = b.queue.notify(1).unwrap();
    b.pair.send_inline(1, b"x", Flags::NONE).unwrap();
    // As a thread that looked whether anything was sent before it was.
    b.state().channel.get().unwrap().arm(MESSAGES);
    assert_eq!(b.end().sleeping.0.armed.load(Relaxed), MESSAGES | ACKNOWLEDGEMENTS);
    drop(a);
}

/// Both sleep whenever they have nothing to do, while one sends to the other.
fn send_to_a_sleeper(messages: u64, length: usize) {
    const BUFFERS: u32 = 8;
    const DEPTH: u32 = 16;
    let (a, _) = End::new(DEPTH, false);
    let (b, shared) = End::new(BUFFERS, true);
    let shared = shared.unwrap();
    join(&a, &b);
    let post = |slot: u64| {
        let into = b.segment(slot as usize * length, length);
        shared.receive(slot, &[into]).unwrap();
    };
    (0..BUFFERS.into()).for_each(post);
    // The next results, asleep until there are some.
    let sleep = |end: &End| loop {
        let results = end.results();
        if !results.is_empty() {
            return results;
        }
        let _ = end.queue.notify(1);
        let results = end.results();
        if !results.is_empty() {
            return results;
        }
        let mut fds =
            [libc::pollfd { fd: end.queue.descriptor(), events: libc::POLLIN, revents: 0 }];
        let woken = poll::poll(&mut fds, Some(20_000_000_000), None);
        assert_eq!(woken, Ok(1), "slept over");
        while end.queue.next_result().is_some() {}
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = 0;
            for number in 0..messages {
                while number - done == DEPTH.into() {
                    done += sleep(&a).len() as u64;
                }
                let at = (number % u64::from(DEPTH)) as usize * 8;
                // SAFETY: within the memory; what is sent from there begins elsewhere, or was sent.
                unsafe { a.bytes.add(at).cast::<u64>().write(number) };
                a.pair.send(number, &[a.segment(at, length)], Flags::NONE).unwrap();
            }
            while done < messages {
                done += sleep(&a).len() as u64;
            }
        });
        let mut expected = 0u64;
        while expected < messages {
            for got in sleep(&b) {
                assert_eq!(got.result(), Ok(length as u32));
                // SAFETY: within the memory; the buffer is ours until it is posted again.
                let number =
                    unsafe { b.bytes.add(got.request as usize * length).cast::<u64>().read() };
                assert_eq!(number, expected);
                expected += 1;
                post(got.request);
            }
        }
    });
}

#[test]
fn no_message_is_slept_over() {
    send_to_a_sleeper(20_000, 8);
}

#[test]
fn no_room_in_the_ring_is_slept_over() {
    // Four of them fit. Threads that are put aside at every moment find what is slept over.
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| send_to_a_sleeper(10_000, 60_000))));
    });
}
