//! Two ends in one process, over the simulation provider, and some of it over shared memory.

mod ends;
mod lending;
mod moves;
mod protocol;
mod returning;
mod streams;
mod turning;

use super::link::{Link, LinkPort};
use super::request::geometry_of;
use super::{background, HelperCalls};
use crate::provider::interface::client::*;
use crate::provider::interface::library::Library;
use crate::provider::interface::Started;
use crate::provider::shm::objects::SharedMemory;
use crate::provider::shm::{AgreementState, Geometry, Role, Segment};
use crate::provider::simulation::Simulation;
use crate::registry;
use crate::session;
use crate::session::transfer::Call;
use crate::switch::test_ends::{Buffers, Memory, Stream, Take};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

/// The helper is there; nothing goes back to TCP by itself.
const CALLS: HelperCalls =
    HelperCalls { come_to: |_| false, serve_requests: || false, reachable: |_| {} };

pub(super) const GEOMETRY: Geometry = Geometry {
    buffers: 16,
    message_size: 1536,
    send_buffer: 1 << 16,
    largest_message: 1536,
    largest_send_buffer: 1 << 16,
};

/// One end: what a process has of a connection.
struct End {
    link: Arc<Link>,
    segment: Segment,
    memory: Memory,
}

impl End {
    fn new(link: Arc<Link>, role: Role) -> Self {
        link.make_segment(geometry_of(GEOMETRY), role).unwrap();
        let segment = link.segment().unwrap();
        let memory = Memory::create_far(role, segment.geometry()).unwrap();
        End { link, segment, memory }
    }

    /// Enters, as the switch has it do; false if it may not.
    fn enter(&self) -> bool {
        self.link.poll();
        let role = self.stream().endpoint.role();
        let kind = match role {
            Role::Connector => session::Kind::SessionRequest,
            Role::Acceptor => session::Kind::SessionAccept,
        };
        if !self.segment.agreement().enter(role) {
            return false;
        }
        // SAFETY: never discarded.
        unsafe { self.link.attach(self.memory.controller()) };
        self.stream().open(kind);
        self.link.say_entered();
        true
    }

    fn stream(&self) -> Stream<'_> {
        // SAFETY: mapped for as long as the process lives.
        let endpoint = unsafe { self.memory.endpoint() };
        let (segment, fabric) = (&self.segment, Some(&*self.link));
        Stream::new(endpoint, segment, registry::spare(), fabric)
    }

    /// Sends what fits of `bytes`, as the switch does.
    fn send(&self, bytes: &[u8]) -> usize {
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
    fn receive(&self, most: usize) -> Vec<u8> {
        let stream = self.stream();
        self.link.poll();
        let mut bytes = vec![0; most];
        let call = Call { number: 0, directly: false };
        let moved = {
            let _held = stream.lock_receive().unwrap();
            let one = [piece(bytes.as_mut_ptr(), most)];
            stream.receive(&mut Buffers::new(&one).unwrap(), Take::Consume, call).unwrap()
        };
        if moved.ring {
            self.link.ring();
        }
        self.link.received();
        bytes.truncate(moved.bytes);
        bytes
    }

    /// Sends more than the receives that its peer, which does not look, has posted.
    fn overwhelm_peer(&self) {
        for _ in 0..40 {
            self.send(b"?");
            self.link.poll();
        }
    }

    fn finished(&self) -> u32 {
        self.link.poll();
        self.stream().peer().sending.0.finished.load(SeqCst)
    }
}

fn piece(at: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast(), iov_len: length }
}

fn adapter(address: &str) -> (Adapter, IpAddr) {
    let ip: IpAddr = address.parse().unwrap();
    let library = match ip.is_loopback() {
        true => Library::built_in::<SharedMemory>(),
        false => Library::built_in::<Simulation>(),
    };
    let provider = Provider::open(&library).unwrap();
    (provider.open_adapter((ip, 0).into()).unwrap(), ip)
}

/// An adapter in use, and an address of it.
pub(super) fn port_at(address: &str, number: u16) -> (&'static LinkPort, SocketAddr) {
    background::install(CALLS);
    let (adapter, ip) = adapter(address);
    (LinkPort::open(adapter, ip).unwrap(), (ip, number).into())
}

/// A link that is not connected.
pub(super) fn link_over(port: &'static LinkPort) -> Arc<Link> {
    background::install(CALLS);
    Link::new(port, port.device.objects().unwrap().adapter.create_connector().unwrap()).unwrap()
}

/// Two connected links, without segments.
fn links(a: &str, b: &str) -> (Arc<Link>, Arc<Link>) {
    let ((a, ip_a), (b, ip_b)) = (adapter(a), adapter(b));
    links_over(LinkPort::open(a, ip_a).unwrap(), LinkPort::open(b, ip_b).unwrap())
}

/// The same over adapters that are in use.
fn links_over(a: &'static LinkPort, b: &'static LinkPort) -> (Arc<Link>, Arc<Link>) {
    let listener = b.device.objects().unwrap().adapter.create_listener().unwrap();
    listener.bind((b.device.local, 0).into()).unwrap();
    listener.listen(1).unwrap();
    let (from, to) = (link_over(a), link_over(b));
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

/// Two ends of one connection that have not entered.
fn made(a: &str, b: &str) -> (End, End) {
    made_of(links(a, b))
}

fn made_of((from, to): (Arc<Link>, Arc<Link>)) -> (End, End) {
    (End::new(from, Role::Connector), End::new(to, Role::Acceptor))
}

/// Two that have.
fn ends(a: &str, b: &str) -> (End, End) {
    ends_between(links(a, b))
}

fn ends_between(links: (Arc<Link>, Arc<Link>)) -> (End, End) {
    let (from, to) = made_of(links);
    assert!(!to.enter(), "the connector is first");
    assert!(from.enter() && to.enter());
    from.link.poll();
    assert_eq!(from.segment.agreement().state(), AgreementState::Settled);
    (from, to)
}

fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// What a fork relative has of an end.
fn relative(of: &End) -> End {
    let (adapter, ip) = adapter("192.0.2.200");
    let port = LinkPort::open(adapter, ip).unwrap();
    let link = link_over(port);
    // SAFETY: never discarded.
    unsafe {
        link.give_segment(of.segment, of.stream().endpoint.role());
        link.attach(of.memory.controller());
    }
    link.leave_to_relatives();
    // The segment is the first one's to unmap.
    std::mem::forget(link.clone());
    End { link, segment: of.segment, memory: of.memory }
}
