//! Makes a program's calls on both ends of a connection, in one process, and looks at what is lent to the peer while
//! they run, and at what the calls tell.

use crate::provider::shm::{Geometry, Role, Segment, FINISHED};
use crate::session::transfer::{Abilities, Way};
use crate::session::{Control, Kind, Mode};
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::switch::endpoint::memory::Memory;
use crate::switch::event_bits as bit;
use crate::switch::outcome::Outcome;
use crate::switch::readiness::events;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::Stream;
use crate::switch::transfer;
use crate::sys::lender::Lender;
use crate::sys::{file, net, Errno};
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const READ: Abilities = Abilities { threshold: 4096, read: true, write: false };
const WRITE: Abilities = Abilities { threshold: 4096, read: false, write: true };
const LARGE: usize = 40_000;
const GEOMETRY: Geometry = Geometry {
    buffers: 16,
    message_size: 1536,
    send_buffer: 1 << 16,
    largest_message: 16384,
    largest_send_buffer: 1 << 16,
};

/// Both ends of a connection. Their memory is never given back.
struct Ends {
    left: &'static Socket,
    right: &'static Socket,
}

impl Ends {
    /// Makes a connection that both ends use, whose large sends go by RDMA. A receive without data gives up soon.
    fn with(abilities: Abilities) -> Ends {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (right, _) = listener.accept().unwrap();
        let (segment, fd) = Segment::create(GEOMETRY).unwrap();
        file::close(fd);
        let end = |anchor: TcpStream, role| {
            anchor.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let socket: &'static Socket = Box::leak(Box::new(Socket::loose(anchor.into_raw_fd())));
            socket.has_options.store(true, std::sync::atomic::Ordering::Relaxed);
            let memory = Memory::create_far(role, GEOMETRY).unwrap();
            // SAFETY: no one else has this memory, and it is never discarded.
            unsafe {
                memory.endpoint().offer(abilities);
                memory.endpoint().use_memory_of(Lender::own());
                socket.attach(segment, memory, None);
            }
            socket.set_phase(phase::SAN);
            socket
        };
        let ends = Ends { left: end(left, Role::Connector), right: end(right, Role::Acceptor) };
        let (left, right) = ends.streams();
        left.open(Kind::SessionRequest);
        right.open(Kind::SessionAccept);
        for end in [left, right] {
            end.endpoint.set(flag::ONE_PROCESS);
            takes_in(&end);
            // A sender tries RDMA only after it has sent messages.
            let preference = &end.endpoint.send.preference;
            let mut now = 0;
            while preference.way() == Way::Messages {
                preference.record(Way::Messages, 1 << 20, now, now + 1000);
                now += 1000;
            }
        }
        ends
    }

    fn streams(&self) -> (Stream<'static>, Stream<'static>) {
        (self.left.stream().unwrap(), self.right.stream().unwrap())
    }

    /// Asserts that neither end can access the memory of the other.
    fn assert_nothing_lent(&self, when: &str) {
        for (end, stream) in [("left", self.streams().0), ("right", self.streams().1)] {
            assert!(!stream.own().readable.0.is_lent(), "readable at the {end} end {when}");
            assert!(!stream.own().writable.0.is_lent(), "writable at the {end} end {when}");
        }
    }
}

fn takes_in(stream: &Stream) {
    let _held = stream.lock_receive().unwrap();
    stream.absorb().unwrap();
}

fn send(socket: &Socket, bytes: &[u8]) -> Result<usize, Errno> {
    let one = [libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() }];
    match transfer::send(socket, Buffers::new(&one).unwrap(), 0) {
        Outcome::Done(sent) => sent,
        Outcome::Pass => panic!("it went back to TCP"),
    }
}

fn receive(socket: &Socket, to: &mut [u8]) -> Result<usize, Errno> {
    let one = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() }];
    match transfer::receive(socket, Buffers::new(&one).unwrap(), 0) {
        Outcome::Done(received) => received,
        Outcome::Pass => panic!("it went back to TCP"),
    }
}

/// Receives all of `bytes`, however long they take to come.
fn receive_all(socket: &Socket, bytes: &mut [u8]) {
    let mut got = 0;
    while got < bytes.len() {
        match receive(socket, &mut bytes[got..]) {
            Ok(n) => got += n,
            Err(e) => assert_eq!(e, Errno(libc::EAGAIN)),
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8).collect()
}

#[test]
fn a4_m5_a_send_that_nobody_receives_lends_its_memory_for_two_scans() {
    for abilities in [READ, WRITE] {
        let ends = Ends::with(abilities);
        let (bytes, mut received) = (pattern(LARGE), vec![0; LARGE]);
        assert_eq!(send(ends.left, &bytes), Ok(LARGE));
        let (left, _) = ends.streams();
        assert_eq!(left.endpoint.send.transfers.scans(), 2);
        assert_eq!(left.endpoint.send.transfers.bytes(), 0, "all of it went in messages");
        ends.assert_nothing_lent("after the send");
        receive_all(ends.right, &mut received);
        assert!(received == bytes);
        ends.assert_nothing_lent("after the receive");
    }
}

#[test]
fn m5_nothing_is_lent_after_a_transfer() {
    for abilities in [READ, WRITE] {
        let ends = Ends::with(abilities);
        let right = ends.right;
        let (left, _) = ends.streams();
        let bytes = pattern(LARGE);
        // A receiver that gets no processor gets messages (A4), so one send may not be enough.
        while left.endpoint.send.transfers.bytes() == 0 {
            let receiver = std::thread::spawn(move || {
                let mut received = vec![0; LARGE];
                receive_all(right, &mut received);
                received
            });
            assert_eq!(send(ends.left, &bytes), Ok(LARGE));
            assert!(!left.own().readable.0.is_lent(), "the send returned");
            assert!(receiver.join().unwrap() == bytes);
            ends.assert_nothing_lent("after both");
        }
    }
}

/// A send finds that the advertised buffer is withdrawn, and goes on.
#[test]
fn m5_a14_what_a_receive_advertised_is_taken_back_when_it_gives_up() {
    let ends = Ends::with(WRITE);
    let (left, right) = ends.streams();
    left.endpoint.due.note(&Control::EnterMode(Mode::LargeReceive, false));
    left.try_send_due();
    takes_in(&right);
    let (bytes, mut room) = (pattern(LARGE), vec![0; LARGE]);
    let before = right.endpoint.session.last_sent();
    assert_eq!(receive(ends.right, &mut room), Err(Errno(libc::EAGAIN)));
    assert_eq!(right.endpoint.session.last_sent(), before + 1, "it was advertised");
    ends.assert_nothing_lent("after the receive");
    assert_eq!(send(ends.left, &bytes), Ok(LARGE));
    assert_eq!(left.endpoint.send.transfers.advertisements(), (0, 1));
    assert!(room.iter().all(|byte| *byte == 0), "it is the program's again");
    ends.assert_nothing_lent("after the send");
    receive_all(ends.right, &mut room);
    assert!(room == bytes);
}

#[test]
fn an_end_that_the_peer_only_claims_is_nothing_to_read_over_tcp() {
    let ends = Ends::with(READ);
    let (left, right) = ends.streams();
    right.endpoint.begin_on_tcp();
    left.own().sending.0.finished.fetch_or(FINISHED, SeqCst);
    let asked = bit::IN | bit::RDHUP;
    assert_eq!(events::of_socket(ends.right, asked) & bit::IN, 0);
    assert_eq!(receive(ends.right, &mut [0; 8]), Err(Errno(libc::EAGAIN)));
    // The kernel's end is one.
    net::shutdown(ends.left.anchor(), libc::SHUT_WR).unwrap();
    assert_eq!(events::of_socket(ends.right, asked), asked);
    assert_eq!(receive(ends.right, &mut [0; 8]), Ok(0));
}
