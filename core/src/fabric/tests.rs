//! Two ends in one process, over the simulation provider, and some of it over shared memory.

use super::frame::{self, Kind, State};
use super::link::{Link, Tell};
use super::mailbox::Berth;
use super::port::Port;
use super::request::{self, geometry_of};
use crate::provider::interface::client::*;
use crate::provider::interface::library::Library;
use crate::provider::interface::{Error, Started};
use crate::provider::shm::objects::SharedMemory;
use crate::provider::shm::{Geometry, Role, Segment, CLOSED, FAILED, FINISHED};
use crate::provider::simulation::{lose_link, remove_device, Simulation};
use crate::registry;
use crate::session;
use crate::session::transfer::Call;
use crate::switch::test_ends::{Buffers, Memory, Stream, Take};
use crate::sys::{file, Errno};
use std::net::IpAddr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;

const GEOMETRY: Geometry = Geometry {
    buffers: 16,
    message_size: 1536,
    send_buffer: 1 << 16,
    largest_message: 1536,
    largest_send_buffer: 1 << 16,
};

/// One end: what a process has of a connection.
pub(super) struct End {
    pub(super) link: Arc<Link>,
    segment: Segment,
    memory: Memory,
}

impl End {
    fn new(link: Arc<Link>, role: Role) -> Self {
        let (segment, fd) = Segment::create(geometry_of(GEOMETRY)).unwrap();
        file::close(fd);
        let memory = Memory::create_far(role, segment.geometry()).unwrap();
        // SAFETY: never discarded.
        unsafe { link.attach(segment, role, memory.controller()) };
        End { link, segment, memory }
    }

    pub(super) fn stream(&self) -> Stream<'_> {
        // SAFETY: mapped for as long as the process lives.
        let endpoint = unsafe { self.memory.endpoint() };
        let (segment, fabric) = (&self.segment, Some(&*self.link));
        Stream::new(endpoint, segment, registry::spare(), fabric)
    }

    /// Sends what fits of `bytes`, as the switch does.
    pub(super) fn send(&self, bytes: &[u8]) -> usize {
        let stream = self.stream();
        let moved = {
            let _held = stream.lock_send().unwrap();
            let one = [piece(bytes.as_ptr().cast_mut(), bytes.len())];
            stream.send(&mut Buffers::new(&one).unwrap()).unwrap()
        };
        if moved.ring {
            self.link.ring();
        }
        moved.bytes
    }

    /// Receives what is there, at most `most` bytes.
    pub(super) fn receive(&self, most: usize) -> Vec<u8> {
        let stream = self.stream();
        self.link.poll();
        let mut bytes = vec![0; most];
        let call = Call { number: 0, directly: false };
        let moved = {
            let _held = stream.lock_receive().unwrap();
            let one = [piece(bytes.as_mut_ptr(), most)];
            stream.receive(&mut Buffers::new(&one).unwrap(), Take::Consume, call, false).unwrap()
        };
        if moved.ring {
            self.link.ring();
        }
        self.link.received();
        bytes.truncate(moved.bytes);
        bytes
    }

    pub(super) fn finished(&self) -> u32 {
        self.link.poll();
        self.stream().peer().sending.0.finished.load(SeqCst)
    }
}

fn piece(at: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast(), iov_len: length }
}

pub(super) fn adapter(address: &str) -> (Adapter, IpAddr) {
    let ip: IpAddr = address.parse().unwrap();
    let library = match ip.is_loopback() {
        true => Library::built_in::<SharedMemory>(),
        false => Library::built_in::<Simulation>(),
    };
    let provider = Provider::open(&library).unwrap();
    (provider.open_adapter((ip, 0).into()).unwrap(), ip)
}

/// A link that is not connected.
fn link_over(port: &'static Port) -> Arc<Link> {
    Link::new(port, port.device().unwrap().adapter.create_connector().unwrap()).unwrap()
}

/// Two connected links, not yet attached to segments.
fn links(a: &str, b: &str) -> (Arc<Link>, Arc<Link>) {
    let ((a, ip_a), (b, ip)) = (adapter(a), adapter(b));
    let listener = b.create_listener().unwrap();
    listener.bind((ip, 0).into()).unwrap();
    listener.listen(1).unwrap();
    let (port_a, port_b) = (Port::open(a, ip_a).unwrap(), Port::open(b, ip).unwrap());
    let from = link_over(port_a);
    let to = link_over(port_b);
    let address = listener.local_address().unwrap();
    let _ = from.connector().connect(from.pair(), address, b"", 1).unwrap();
    if listener.get_connection_request(to.connector(), 2).unwrap() == Started::Pending {
        assert!(listener.next_result().is_some());
    }
    let _ = to.connector().accept(to.pair(), b"", 3).unwrap();
    assert_eq!(from.connector().next_result().unwrap().result, Ok(()));
    let _ = from.connector().complete_connect(4).unwrap();
    (from, to)
}

/// Two ends of one connection, taken by both.
pub(super) fn ends(a: &str, b: &str) -> (End, End) {
    let (from, to) = links(a, b);
    let from = End::new(from, Role::Connector);
    from.stream().open(session::Kind::SessionRequest);
    from.link.bind(b"tuple".to_vec());
    to.poll();
    assert_eq!(to.binding.get().unwrap(), b"tuple");
    assert!(to.take());
    let to = End::new(to, Role::Acceptor);
    to.stream().open(session::Kind::SessionAccept);
    to.link.confirm();
    from.link.poll();
    (from, to)
}

pub(super) fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

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
    let mut again = frame::encode(Kind::Ring, 12, &State::default()).to_vec();
    again.extend_from_slice(&[0; 12]);
    end.link.arrived(&again);
    end.link.has_failed()
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
fn an_urgent_byte_that_is_replaced_where_the_reader_is_is_gone() {
    let (a, b) = ends("192.0.2.139", "192.0.2.140");
    let send_urgent = |byte: u8| {
        let stream = a.stream();
        let held = stream.lock_send().unwrap();
        stream.mark_urgent(byte);
        drop(held);
        assert_eq!(a.send(&[byte]), 1);
    };
    assert_eq!(a.send(b"abc"), 3);
    assert_eq!(b.receive(3), b"abc");
    for byte in *b"123" {
        // The sender has not heard yet how far the reader is.
        send_urgent(byte);
        b.link.poll();
        assert!(b.stream().mark_at(0).is_some_and(|mark| mark.byte() == byte));
    }
    assert_eq!(a.send(b"def"), 3);
    assert_eq!(b.receive(10), b"def");
}

#[test]
fn a_closed_end_is_drained_only_when_the_peer_has_everything() {
    let (a, b) = ends("192.0.2.107", "192.0.2.108");
    assert_eq!(a.send(&pattern(0, 30_000)), 30_000);
    a.stream().own().sending.0.finished.fetch_or(CLOSED, SeqCst);
    let next = a.stream().endpoint.session.last_sent().wrapping_add(1);
    while !a.link.is_flushed(next) {}
    assert_eq!(b.finished() & CLOSED, CLOSED);
    let tail = b.stream().peer().sending.0.tail.load(Relaxed);
    assert_eq!(tail, a.stream().own().sending.0.tail.load(Relaxed));
    let mut received = 0;
    while received < 30_000 {
        received += b.receive(7000).len();
    }
}

#[test]
fn a_broken_fabric_fails_the_link_and_nothing_else() {
    let (a, b) = ends("192.0.2.109", "192.0.2.110");
    let (c, d) = ends("192.0.2.111", "192.0.2.112");
    a.send(b"before");
    assert_eq!(b.receive(10), b"before");
    lose_link("192.0.2.110".parse().unwrap());
    a.send(b"after");
    a.link.poll();
    assert!(a.link.has_failed() && !a.link.is_broken(), "its peer may have died");
    assert_eq!(a.finished() & FAILED, FAILED);
    while !a.link.is_broken() {}
    assert!(!c.link.has_failed() && !d.link.has_failed());
    c.send(b"still");
    assert_eq!(d.receive(10), b"still");
}

#[test]
fn a_link_that_ends_once_its_peer_closed_is_not_broken() {
    let (a, b) = ends("192.0.2.133", "192.0.2.134");
    assert_eq!(a.send(&pattern(0, 30_000)), 30_000);
    a.stream().own().sending.0.finished.fetch_or(CLOSED, SeqCst);
    let next = a.stream().endpoint.session.last_sent().wrapping_add(1);
    while !a.link.is_flushed(next) {}
    lose_link("192.0.2.133".parse().unwrap());
    b.send(b"after");
    b.link.fail(Error::ConnectionReset);
    assert!(b.link.has_failed() && !b.link.is_broken());
    assert_eq!(b.receive(30_000), pattern(0, 30_000));
}

#[test]
fn a_link_that_is_refused_sends_nothing_of_what_was_written() {
    let (from, to) = links("192.0.2.113", "192.0.2.114");
    let from = End::new(from, Role::Connector);
    from.stream().open(session::Kind::SessionRequest);
    from.link.bind(b"tuple".to_vec());
    from.send(b"for TCP");
    from.link.withdraw();
    to.poll();
    assert!(!to.take(), "it was asked back");
    from.link.poll();
    assert_eq!(from.segment.state(), crate::provider::shm::State::Refused);
    assert_eq!(from.stream().own().sending.0.tail.load(Relaxed), 7);
}

#[test]
fn a_removed_device_ends_its_connections() {
    let (a, b) = ends("192.0.2.131", "192.0.2.132");
    b.send(b"on its way");
    assert!(!b.link.port().loses_device());
    remove_device("192.0.2.132".parse().unwrap());
    assert!(b.link.port().loses_device());
    assert!(!b.link.port().loses_device(), "it is told once");
    b.link.port().each_link(|link| link.lose_device());
    assert!(b.link.has_failed());
    assert_eq!(b.link.error(), Errno(libc::ECONNRESET));
    assert!(b.finished() & FAILED != 0);
    let mut left = 0;
    b.link.port().each_link(|_| left += 1);
    assert_eq!(left, 0, "nothing of it is kept");
    b.link.port().retire();
    assert!(b.link.port().close() && b.link.port().device().is_err());
    // What is done to it afterwards reaches nothing.
    b.send(b"more");
    b.link.tick(Tell::Certain);
    b.link.close(None);
    assert!(b.link.is_drained());
    drop(a);
}

#[test]
fn a_peer_that_breaks_the_protocol_fails_its_own_link() {
    let state = State::default();
    let frame = |kind, payload: &[u8]| {
        let mut frame = frame::encode(kind, payload.len(), &state).to_vec();
        frame.extend_from_slice(payload);
        frame
    };
    let mut second = [0u8; 16];
    second[0] = 99;
    for (good, bytes) in [
        (true, frame(Kind::State, b"")),
        (true, frame(Kind::Bytes, &[7; 1000])),
        (false, Vec::new()),
        (false, vec![255; 64]),
        (false, frame(Kind::Message, &[0; 15])),
        (false, frame(Kind::Message, &second)),
        (false, frame(Kind::Taken, b"")),
        (false, frame(Kind::Bound, b"again")),
        (true, frame(Kind::Ring, &[0; 12])),
        (false, frame(Kind::Ring, &[0; 11])),
        (false, frame(Kind::Written, &[1, 0, 0, 0])),
    ] {
        let (a, b) = ends("192.0.2.115", "192.0.2.116");
        b.link.arrived(&bytes);
        assert_eq!(b.link.has_failed(), !good, "{bytes:?}");
        drop(a);
    }
    let (_a, b) = ends("192.0.2.115", "192.0.2.116");
    for sent in 0..5 {
        b.link.arrived(&frame(Kind::Bytes, &[7; 16_000]));
        assert_eq!(b.link.has_failed(), sent == 4, "more than the send buffer holds");
    }
}

#[test]
fn a_peer_that_may_write_cannot_say_that_it_wrote_more_than_there_is_room() {
    for (good, count) in [(true, 1u32 << 16), (false, (1 << 16) + 1), (false, u32::MAX)] {
        let (a, b) = ends("192.0.2.117", "192.0.2.118");
        let mut received = 0;
        while received < 4 << 16 {
            a.link.poll();
            a.send(&pattern(0, 20_000));
            received += b.receive(20_000).len();
            b.link.before_sleep();
        }
        while !b.receive(20_000).is_empty() {}
        let mut frame = frame::encode(Kind::Written, 4, &State::default()).to_vec();
        frame.extend_from_slice(&count.to_le_bytes());
        b.link.arrived(&frame);
        assert_eq!(b.link.has_failed(), !good, "{count}");
    }
}

#[test]
fn links_go_on_while_silent_ones_keep_most_of_a_port() {
    let (a, b) = ends("192.0.2.119", "192.0.2.120");
    let port = a.link.port();
    // What idle links keep: sends that were never told to be over.
    while port.may_send() {}
    port.sent(4);
    for round in 0..100 {
        assert_eq!(a.send(&pattern(round, 1)), 1);
        a.link.poll();
        assert_eq!(b.receive(1), pattern(round, 1), "{round}");
    }
}

/// What a fork relative has of an end.
pub(super) fn relative(of: &End) -> End {
    let (adapter, ip) = adapter("192.0.2.200");
    let port = Port::open(adapter, ip).unwrap();
    let link = link_over(port);
    // SAFETY: never discarded.
    unsafe { link.attach(of.segment, of.stream().endpoint.role(), of.memory.controller()) };
    link.is_relatives();
    // The segment is the first one's to unmap.
    std::mem::forget(link.clone());
    End { link, segment: of.segment, memory: of.memory }
}

/// A move of `from`'s link to a relative, step by step as the processes' helpers come to it.
struct Move {
    to: End,
    port: &'static Port,
    listener: Listener,
    connector: Option<Connector>,
    came: bool,
    berth: Berth,
}

impl Move {
    fn new(from: &End, address: &str, mailbox: u64) -> Self {
        let (adapter, ip) = adapter(address);
        let listener = adapter.create_listener().unwrap();
        listener.bind((ip, 0).into()).unwrap();
        listener.listen(1).unwrap();
        let number = listener.local_address().unwrap().port();
        let port = Port::open(adapter, ip).unwrap();
        let connector = port.device().unwrap().adapter.create_connector().unwrap();
        let _ = listener.get_connection_request(&connector, 1).unwrap();
        let berth = Berth { number, cookie: [mailbox, 1], mailbox, pid: std::process::id() };
        let to = relative(from);
        Move { to, port, listener, connector: Some(connector), came: false, berth }
    }

    /// True once it is over.
    fn step(&mut self, from: &End) -> bool {
        // Again where both move: the acceptor gives way.
        if self.to.link.wish(self.berth.mailbox) {
            from.link.move_to(&self.berth);
        }
        self.came |= self.listener.next_result().is_some();
        if let Some(connector) = self.connector.take_if(|_| self.came) {
            let (_, cookie) = request::decode(&connector.private_data().unwrap()).unwrap();
            assert_eq!(cookie, self.berth.cookie);
            let taken = self.to.link.take_control(self.port, self.berth.mailbox, connector);
            if let Err((_, early)) = taken {
                self.connector = Some(early.expect("control cannot be taken"));
            }
        }
        !self.to.link.is_foreign() && !self.to.link.is_moving()
    }
}

/// Two streams go on while the link of one end, or of both, moves to another process; bytes are sent and
/// taken by the old and the new one.
fn move_under_traffic(addresses: [&str; 2], moves: [bool; 2], seed: usize) {
    let (a, b) = ends(addresses[0], addresses[1]);
    let ends = [&a, &b];
    let mut under_way: Vec<_> = (0..2)
        .map(|i| moves[i].then(|| Move::new(ends[i], addresses[i], 71 + 2 * i as u64)))
        .collect();
    let (mut sent, mut received, mut over) = ([0; 2], [0; 2], [false; 2]);
    const TOTAL: usize = 2 << 20;
    for round in 0.. {
        assert!(round < 100_000, "{sent:?} sent, {received:?} received, over: {over:?}");
        let random = (round * 7919 + seed).wrapping_mul(2_654_435_761) >> 7;
        let i = random % 2;
        // Who uses the end: either of its processes.
        let user = match &under_way[i] {
            Some(one) if random & 8 != 0 => &one.to,
            _ => ends[i],
        };
        let size = (random % 30_000).min(TOTAL - sent[i]);
        if size > 0 {
            sent[i] += user.send(&pattern(sent[i], size));
        }
        let got = user.receive(1 + random % 40_000);
        assert_eq!(got, pattern(received[i], got.len()), "at {}", received[i]);
        received[i] += got.len();
        if round > 20 {
            for i in 0..2 {
                if let Some(one) = &mut under_way[i] {
                    over[i] = one.step(ends[i]);
                    one.to.link.tick(Tell::All);
                    one.to.link.poll();
                } else {
                    over[i] = true;
                }
                ends[i].link.tick(Tell::All);
                ends[i].link.poll();
            }
        }
        if over == [true; 2] && received == [TOTAL; 2] {
            break;
        }
    }
    for (i, one) in under_way.iter().enumerate() {
        let Some(one) = one else { continue };
        assert!(ends[i].link.is_foreign() && !ends[i].link.has_failed());
        assert!(!one.to.link.has_failed());
    }
}

#[test]
fn control_of_a_link_moves_to_another_process_and_no_byte_is_lost() {
    for seed in 0..5 {
        move_under_traffic(["192.0.2.121", "192.0.2.122"], [false, true], seed);
        move_under_traffic(["192.0.2.121", "192.0.2.122"], [true, false], seed);
    }
}

#[test]
fn control_goes_to_who_wants_it_still() {
    let (a, _b) = ends("192.0.2.135", "192.0.2.136");
    let heir = relative(&a);
    let berth = |mailbox| Berth { number: 9, cookie: [mailbox, 1], mailbox, pid: 1 };
    assert!(!a.link.move_to(&berth(71)), "it does not want it");
    assert!(heir.link.wish(73) && heir.link.wish(71));
    assert!(!a.link.move_to(&berth(73)), "another one wants it meanwhile");
    assert!(a.link.move_to(&berth(71)) && a.link.is_moving());
    assert!(!heir.link.wish(73), "it is promised");
}

/// Else TCP tells an end of which its peer does not know whether it was in order.
#[test]
fn for_a_relative_too_the_end_is_part_of_what_the_peer_is_to_have() {
    let (a, b) = ends("192.0.2.137", "192.0.2.138");
    let one = relative(&a);
    assert_eq!(one.send(&pattern(0, 1000)), 1000);
    let next = a.stream().endpoint.session.last_sent().wrapping_add(1);
    while !a.link.is_flushed(next) {}
    assert!(one.link.is_flushed(next));
    one.stream().own().sending.0.finished.fetch_or(FINISHED, SeqCst);
    assert!(!one.link.is_flushed(next) && b.finished() & FINISHED == 0);
    while !a.link.is_flushed(next) {}
    assert!(one.link.is_flushed(next) && b.finished() & FINISHED != 0);
}

#[test]
fn a_move_may_come_before_the_link_is_known_to_be_there() {
    let (a, b) = ends("192.0.2.137", "192.0.2.138");
    let mut one = Move::new(&a, "192.0.2.137", 71);
    while one.to.link.is_foreign() {
        one.step(&a);
        for link in [&a.link, &b.link] {
            link.tick(Tell::All);
            link.poll();
        }
    }
    assert!(one.to.link.is_moving(), "it is not there yet");
    let mut again = frame::encode(Kind::Move, 18, &State::default()).to_vec();
    again.extend([0; 18]);
    one.to.link.arrived(&again);
    assert!(!one.to.link.has_failed());
}

#[test]
fn links_of_both_ends_move_at_once() {
    for seed in 0..5 {
        move_under_traffic(["192.0.2.123", "192.0.2.124"], [true, true], seed);
    }
}

#[test]
fn a_move_that_was_not_asked_for_fails_the_link() {
    for (kind, payload) in [(Kind::Moved, &[][..]), (Kind::Move, &[0; 17]), (Kind::Move, &[])] {
        let (_a, b) = ends("192.0.2.125", "192.0.2.126");
        let mut frame = frame::encode(kind, payload.len(), &State::default()).to_vec();
        frame.extend_from_slice(payload);
        b.link.arrived(&frame);
        assert!(b.link.has_failed(), "{kind:?} of {}", payload.len());
    }
}
