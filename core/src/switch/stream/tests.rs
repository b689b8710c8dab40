//! Two ends of one connection in one process, and what is left when a thread of one dies inside a call.

use super::{Held, Moved, Stream, Take};
use crate::provider::shm::{Geometry, Role, Segment};
use crate::registry;
use crate::session::transfer::Call;
use crate::session::Kind;
use crate::switch::buffers::Buffers;
use crate::switch::memory::Memory;
use crate::sys::file;

const GEOMETRY: Geometry = Geometry {
    buffers: 16,
    message_size: 1536,
    send_buffer: 1 << 16,
    largest_message: 16384,
    largest_send_buffer: 1 << 16,
};
const SMALL: Call = Call { number: 0, directly: false };

/// Both ends; their memory is never given back.
pub(super) struct Ends {
    pub(super) left: Stream<'static>,
    pub(super) right: Stream<'static>,
}

impl Ends {
    /// A session both ends use, with nothing under way.
    pub(super) fn new() -> Ends {
        let (segment, fd) = Segment::create(GEOMETRY).unwrap();
        file::close(fd);
        let segment: &'static Segment = Box::leak(Box::new(segment));
        let end = |role| {
            let memory = Memory::create_far(role, segment.geometry()).unwrap();
            // SAFETY: never discarded.
            let endpoint = unsafe { memory.endpoint() };
            Stream { endpoint, role, segment, statistics: registry::spare(), fabric: None }
        };
        let ends = Ends { left: end(Role::Connector), right: end(Role::Acceptor) };
        ends.left.open(Kind::SessionRequest);
        ends.right.open(Kind::SessionAccept);
        for end in [ends.left, ends.right] {
            let _held = end.lock_receive().unwrap();
            end.absorb().unwrap();
        }
        for end in [ends.left, ends.right] {
            // A new endpoint's reader may sleep already.
            end.signal_read();
            end.ring_by(|| ());
        }
        ends
    }
}

/// Sends what fits.
pub(super) fn send(stream: &Stream, bytes: &[u8]) -> Moved {
    let _held = stream.lock_send().unwrap();
    let one = [libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() }];
    stream.send(&mut Buffers::new(&one).unwrap()).unwrap()
}

/// Receives what is there, at most `most` bytes.
pub(super) fn receive(stream: &Stream, most: usize) -> (Vec<u8>, bool) {
    let mut bytes = vec![0u8; most];
    let _held = stream.lock_receive().unwrap();
    let one = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most }];
    let moved = stream.receive(&mut Buffers::new(&one).unwrap(), Take::Consume, SMALL).unwrap();
    bytes.truncate(moved.bytes);
    (bytes, moved.ring)
}

/// Runs `call` in a thread that dies with the lock that `take` takes.
pub(super) fn die_with(
    take: impl FnOnce() -> Held<'static> + Send + 'static,
    call: impl FnOnce() + Send + 'static,
) {
    std::thread::spawn(move || {
        let held = take();
        call();
        std::mem::forget(held);
    })
    .join()
    .unwrap();
}

#[test]
fn d9_a_doorbell_that_a_dead_sender_owes_is_rung_by_the_next() {
    let Ends { left, right } = Ends::new();
    let _asleep = right.own().counters.0.read.raise();
    assert!(send(&left, b"last words").ring);
    // It dies before it rings. Whoever looks finds that, and whoever sends is told to.
    assert!(left.owes_doorbell());
    assert!(send(&left, b"another's").ring);
    left.ring_by(|| ());
    assert!(!left.owes_doorbell() && !send(&left, b"more").ring);
}

#[test]
fn d9_a_doorbell_that_a_dead_receiver_owes_is_rung_by_the_next() {
    let Ends { left, right } = Ends::new();
    while send(&left, &[7; 4096]).bytes == 4096 {}
    let _asleep = left.own().counters.0.write.raise();
    while !receive(&right, 8192).1 {}
    assert!(right.owes_doorbell(), "until it rings");
    right.ring_by(|| ());
    assert!(!right.owes_doorbell());
}

#[test]
fn d9_what_a_thread_published_and_died_with_the_lock_is_signalled_by_who_moves_nothing() {
    let Ends { left, right } = Ends::new();
    let _asleep = right.own().counters.0.read.raise();
    die_with(
        move || left.lock_send().unwrap(),
        move || {
            let header = left.next_message(Kind::Data, 1).unwrap();
            left.slot_out(header.sequence).publish(header.encode());
        },
    );
    assert!(!left.owes_doorbell());
    left.succeed_the_dead();
    assert!(left.owes_doorbell());
    assert_eq!(left.endpoint.session.last_sent(), 2, "and counts as sent");
}
