//! Two queue pairs of one process, joined without a listener: a peer that does what it must not, full
//! rings, and sleepers.

use super::channel::Parts;
use super::completion_queue::CompletionQueue;
use super::layout::{Mapping, ACKNOWLEDGEMENTS, MESSAGES};
use super::pair::{CONNECTED, ENDED};
use super::queue_pair::QueuePair;
use super::ring::RING;
use super::shared_receive_queue::SharedReceiveQueue;
use crate::provider::interface::implement::{
    CompletionQueue as _, MemoryRegion as _, Overlapped as _, QueuePair as _,
    SharedReceiveQueue as _,
};
use crate::provider::interface::*;
use crate::provider::software::inherited::Descriptor;
use crate::provider::software::{Memory, Region};
use crate::sys::{file, net, poll, process};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;

const SIZE: usize = 1 << 20;

struct End {
    pair: QueuePair,
    queue: CompletionQueue,
    memory: Arc<Memory>,
    region: Region,
    bytes: *mut u8,
}

// SAFETY: memory that only copies touch.
unsafe impl Sync for End {}

impl End {
    fn new(depth: u32, shared: bool) -> (Self, Option<SharedReceiveQueue>) {
        Self::over(depth, shared, None)
    }

    /// With another completion queue for its sends.
    fn over(
        depth: u32,
        shared: bool,
        sends: Option<&CompletionQueue>,
    ) -> (Self, Option<SharedReceiveQueue>) {
        let memory = Arc::<Memory>::default();
        let queue = CompletionQueue::new(1024).unwrap();
        let shared = shared.then(|| SharedReceiveQueue::new(&memory, depth).unwrap());
        let attributes = QueuePairAttributes {
            context: 1,
            receive_depth: depth,
            initiator_depth: depth,
            segments: 2,
            inline_size: 64,
        };
        let receives = shared.as_ref().map(|shared| &shared.0);
        let sends = sends.unwrap_or(&queue);
        let pair = QueuePair::new(&attributes, &queue.0, &sends.0, receives, &memory).unwrap();
        let bytes = file::map_private(SIZE).unwrap();
        let region = Region::new(&memory);
        // SAFETY: mapped until the end of the test's process.
        unsafe { region.register(bytes, SIZE) }.unwrap();
        (End { pair, queue, memory, region, bytes }, shared)
    }

    fn segment(&self, offset: usize, length: usize) -> Segment {
        let token = self.region.token().unwrap();
        Segment { address: self.bytes as u64 + offset as u64, length: length as u32, token }
    }

    fn results(&self) -> Vec<Completion> {
        let mut some = [Completion::default(); 64];
        let count = self.queue.get_results(&mut some).unwrap();
        some[..count].to_vec()
    }

    fn end(&self) -> &super::layout::End {
        self.pair.0.channel.get().unwrap().own()
    }
}

/// Connects them; `a`'s number is 0.
fn join(a: &End, b: &End) {
    let [ours, theirs] = parts();
    a.pair.0.open(ours).unwrap();
    b.pair.0.open(theirs).unwrap();
}

/// What the two ends of a connection consist of.
fn parts() -> [Parts; 2] {
    let (memory, fd) = Mapping::create().unwrap();
    let theirs = Mapping::of(fd).unwrap();
    file::close(fd);
    theirs.end(1).proof.0.offer();
    let [doorbell, other_bell] = net::stream_pair().unwrap().map(Descriptor::new);
    let [control, other_control] =
        net::stream_pair().unwrap().map(|fd| Arc::new(Descriptor::new(fd)));
    let peer = process::pid();
    let ours = Parts { memory, doorbell, control, peer, number: 0 };
    let (doorbell, control) = (other_bell, other_control);
    [ours, Parts { memory: theirs, doorbell, control, peer, number: 1 }]
}

fn joined() -> (End, End) {
    let ((a, _), (b, _)) = (End::new(64, false), End::new(64, false));
    join(&a, &b);
    (a, b)
}

/// The queue pair has ended, and its requests with it; nothing was touched.
fn is_refused(end: &End) {
    let results = end.results();
    assert!(results.iter().all(|one| one.result() == Err(Error::Cancelled)), "{results:?}");
    assert_eq!(end.pair.0.phase(), ENDED);
    let sent = end.pair.send_inline(1, b"x", Flags::NONE);
    assert_eq!(sent, Err(Error::Cancelled));
}

#[test]
fn nonsense_from_the_peer_ends_one_queue_pair() {
    let hostile: [fn(&End); 5] = [
        // More than a ring holds.
        |peer| peer.end().sending.0.published.store(u64::MAX, SeqCst),
        |peer| peer.end().sending.0.published.store(RING as u64 + 8, SeqCst),
        // Less than a header.
        |peer| peer.end().sending.0.published.store(1, SeqCst),
        // A message longer than messages are.
        |peer| {
            peer.pair.0.channel.get().unwrap().outgoing().put_length(0, u64::MAX as usize);
            peer.end().sending.0.published.store(64, SeqCst);
        },
        // A message longer than what was published.
        |peer| {
            peer.pair.0.channel.get().unwrap().outgoing().put_length(0, 100);
            peer.end().sending.0.published.store(64, SeqCst);
        },
    ];
    for act in hostile {
        let (a, b) = joined();
        b.pair.receive(1, &[b.segment(0, 64)]).unwrap();
        act(&a);
        is_refused(&b);
    }
}

#[test]
fn a_peer_that_took_what_was_not_sent_is_refused() {
    for taken in [u64::MAX, 24] {
        let (a, b) = joined();
        a.pair.send(1, &[a.segment(0, 8)], Flags::NONE).unwrap();
        b.end().receiving.0.consumed.store(taken, SeqCst);
        is_refused(&a);
    }
}

#[test]
fn what_has_no_room_stays_outstanding_and_in_order() {
    /// Four of them fit.
    const LENGTH: usize = 60_000;
    let (a, b) = joined();
    for number in 0..20u64 {
        if number < 8 {
            a.pair.send(number, &[a.segment(0, LENGTH)], Flags::NONE).unwrap();
        } else {
            // What waits is not copied yet.
            let own = number as usize * 8;
            // SAFETY: within the memory, which nothing else uses.
            unsafe { a.bytes.add(own).cast::<u64>().write(number) };
            a.pair.send(number, &[a.segment(own, 8)], Flags::NONE).unwrap();
        }
    }
    a.pair.send_inline(20, b"the last", Flags::NONE).unwrap();
    assert!(a.results().is_empty());
    let mut sent = 0;
    for number in 0..21u64 {
        b.pair.receive(number, &[b.segment(0, LENGTH)]).unwrap();
        let got = b.results();
        assert_eq!(got.len(), 1, "{number}");
        assert_eq!(got[0].request, number);
        let length = if number < 8 { LENGTH } else { 8 };
        assert_eq!(got[0].result(), Ok(length as u32));
        if (8..20).contains(&number) {
            // SAFETY: written by the queue pair.
            assert_eq!(unsafe { b.bytes.cast::<u64>().read() }, number);
        }
        for done in a.results() {
            assert_eq!((done.request, done.result()), (sent, Ok(0)));
            sent += 1;
        }
    }
    assert_eq!(sent, 21);
    // SAFETY: written above by the queue pair.
    let last = unsafe { b.bytes.cast::<[u8; 8]>().read() };
    assert_eq!(&last, b"the last");
}

#[test]
fn nobody_is_rung_who_does_not_sleep() {
    let (a, b) = joined();
    b.pair.receive(1, &[b.segment(0, 64)]).unwrap();
    a.pair.send_inline(1, b"x", Flags::NONE).unwrap();
    let doorbell = b.pair.0.channel.get().unwrap().doorbell();
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
    let sends = CompletionQueue::new(64).unwrap();
    let ((a, _), (b, _)) = (End::new(8, false), End::over(8, false, Some(&sends)));
    join(&a, &b);
    let is_readable =
        |queue: &CompletionQueue| poll::poll_one(queue.descriptor(), libc::POLLIN).unwrap() != 0;
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
    b.pair.0.channel.get().unwrap().arm(MESSAGES);
    assert_eq!(b.end().sleeping.0.armed.load(Relaxed), MESSAGES | ACKNOWLEDGEMENTS);
    drop(a);
}

#[test]
fn a_queue_pair_that_is_flushed_while_it_is_opened_stays_ended() {
    let (mut opened, mut refused) = (0, 0);
    for round in 0..200 {
        let (end, _) = End::new(2, false);
        let [ours, _theirs] = parts();
        end.pair.receive(1, &[end.segment(0, 8)]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| end.pair.flush().unwrap());
            for _ in 0..round % 8 {
                process::yield_now();
            }
            match end.pair.0.open(ours) {
                Ok(()) => opened += 1,
                Err(_) => refused += 1,
            }
        });
        assert_eq!(end.pair.0.phase(), ENDED);
        let results = end.results();
        assert_eq!((results.len(), results[0].result()), (1, Err(Error::Cancelled)));
    }
    assert_eq!(opened + refused, 200);
}

/// As when another thread is at its turn while the queue pair is flushed.
#[test]
fn m2_nothing_is_bound_once_the_queue_pair_is_to_end() {
    let (a, b) = joined();
    b.pair.0.ending.store(true, SeqCst);
    assert_eq!(b.pair.0.phase(), CONNECTED);
    let address = b.bytes as u64;
    let token = b.pair.bind(1, &b.region, address, 64, RemoteAccess::Write, Flags::NONE).unwrap();
    assert_eq!(b.pair.0.phase(), ENDED);
    let memory = RemoteMemory { address, token };
    a.pair.write(2, &[a.segment(0, 8)], memory, Flags::NONE).unwrap();
    assert_eq!(a.results()[0].result(), Err(Error::RemoteAccess));
    let results = b.results();
    assert_eq!((results.len(), results[0].result()), (1, Err(Error::Cancelled)));
    let late = b.pair.bind(3, &b.region, address, 64, RemoteAccess::Write, Flags::NONE);
    assert_eq!(late, Err(Error::Cancelled));
    assert_eq!(b.region.deregister(), Ok(()));
}

/// A writer that has stopped in the middle holds up nobody, and what it writes to is not given back.
#[test]
fn m2_a_region_stays_registered_until_the_peers_last_write_has_ended() {
    let (a, b) = joined();
    let address = b.bytes as u64;
    let access = RemoteAccess::Write;
    let token = b.pair.bind(1, &b.region, address, 4096, access, Flags::SILENT).unwrap();
    let window = &b.end().windows[super::window::place(token)];
    window.set_phase(2);
    b.pair.flush().unwrap();
    assert_eq!(b.pair.0.phase(), ENDED);
    assert!(b.results().is_empty());
    assert_eq!(b.region.deregister(), Err(Error::InvalidParameter));
    window.set_phase(0);
    assert!(b.results().is_empty());
    assert_eq!(b.region.deregister(), Ok(()));
    drop(a);
}

/// The kernel may forbid the peer what it is offered: it would end the connection.
#[test]
fn nothing_is_bound_for_a_peer_that_cannot_reach_it() {
    let (a, b) = joined();
    a.end().sleeping.0.reaches.store(0, SeqCst);
    let bound = b.pair.bind(1, &b.region, b.bytes as u64, 64, RemoteAccess::Write, Flags::NONE);
    assert_eq!(bound, Err(Error::NotSupported));
    assert_eq!(b.region.deregister(), Ok(()));
    a.pair.receive(1, &[a.segment(0, 8)]).unwrap();
    b.pair.send_inline(2, b"x", Flags::NONE).unwrap();
    assert_eq!((a.results().len(), b.results().len()), (1, 1));
}

#[test]
fn m5_an_invalidation_waits_for_a_write_that_is_under_way() {
    let (a, b) = joined();
    let address = b.bytes as u64;
    let token =
        b.pair.bind(1, &b.region, address, 4096, RemoteAccess::Write, Flags::SILENT).unwrap();
    assert_eq!(b.region.deregister(), Err(Error::InvalidParameter));
    // As a peer that is at it.
    let (window, writing) = (super::window::place(token), 2);
    b.end().windows[window].set_phase(writing);
    b.pair.invalidate(2, token, Flags::NONE).unwrap();
    assert_eq!(b.pair.invalidate(3, token, Flags::NONE), Err(Error::InvalidParameter));
    assert!(b.results().is_empty());
    b.end().windows[window].set_phase(0);
    let results = b.results();
    assert_eq!((results.len(), results[0].request, results[0].result()), (1, 2, Ok(0)));
    let memory = RemoteMemory { address, token };
    a.pair.write(4, &[a.segment(0, 8)], memory, Flags::NONE).unwrap();
    assert_eq!(a.results()[0].result(), Err(Error::RemoteAccess));
    assert_eq!(b.region.deregister(), Ok(()));
    assert_eq!(b.memory.check(&[]), Ok(0));
}

/// Its owner has the memory back once the invalidation has ended, whatever was on its way.
#[test]
fn m5_nothing_lands_after_an_invalidation_that_met_a_write() {
    const LENGTH: usize = 512 << 10;
    for round in 0..40u32 {
        let (a, b) = joined();
        // SAFETY: within the memory, which nothing else uses yet.
        unsafe { a.bytes.write_bytes(9, LENGTH) };
        let address = b.bytes as u64;
        let write = RemoteAccess::Write;
        let token = b.pair.bind(1, &b.region, address, 1 << 19, write, Flags::SILENT).unwrap();
        let memory = RemoteMemory { address, token };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..16 {
                    let from = [a.segment(0, LENGTH)];
                    a.pair.write(number, &from, memory, Flags::NONE).unwrap();
                }
            });
            for _ in 0..round * 50 {
                process::yield_now();
            }
            b.pair.invalidate(2, token, Flags::NONE).unwrap();
            let ended = loop {
                if let Some(&ended) = b.results().first() {
                    break ended;
                }
            };
            assert_eq!((ended.request, ended.result()), (2, Ok(0)));
            // SAFETY: ours again.
            unsafe { b.bytes.write_bytes(1, LENGTH) };
        });
        // SAFETY: nobody writes any more.
        let bytes = unsafe { std::slice::from_raw_parts(b.bytes, LENGTH) };
        assert!(bytes.iter().all(|&byte| byte == 1), "round {round}");
    }
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
