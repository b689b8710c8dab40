//! What only two processes can show: memory that is another's, a peer that is killed, a process without
//! descriptors.
//!
//! A test starts this program once more, as the other process: `other_process` in the part and with the
//! provider that the environment names.

use crate::buffer::pattern;
use crate::side::*;
use crate::Setting;
use sanshim_core::provider::interface::client::{self, Listener, Overlapped, SharedReceiveQueue};
use sanshim_core::provider::interface::*;
use std::process::{Child, Command, Stdio};

const PROVIDER: &str = "SANSHIM_CONFORMANCE_PROVIDER";
const PART: &str = "SANSHIM_CONFORMANCE_PART";
const ADDRESS: &str = "SANSHIM_CONFORMANCE_ADDRESS";
/// Messages there and back.
const ROUNDS: u64 = 400;
/// Messages in one direction.
const POURED: u64 = 2000;
/// Bytes of RDMA.
const SIZE: usize = 900_000;
/// Where what comes back goes.
const HALF: usize = BUFFER / 2;

/// The other process; killed at the latest when the test is over.
struct Other(Child);

impl Other {
    fn start(setting: &Setting, part: &str, listener: &Listener) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "processes::other_process"])
            .env(PROVIDER, setting.name)
            .env(PART, part)
            .env(ADDRESS, listener.local_address().unwrap().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Other(child.unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// It ended by itself, and found nothing amiss.
    fn succeeded(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This process's end of a connection to another one in that part. What `prepare` posts is there before.
fn meet(
    setting: &Setting,
    part: &str,
    shared: impl FnOnce(&client::Adapter) -> Option<SharedReceiveQueue>,
    prepare: impl FnOnce(&Side),
) -> (Side, Other) {
    let (_, adapter) = setting.adapters();
    let listener = setting.listener(&adapter);
    let shared = shared(&adapter);
    let side = Side::new(&adapter, 2, shared.as_ref());
    prepare(&side);
    let other = Other::start(setting, part, &listener);
    finish(listener.get_connection_request(&side.connector, 4), &listener, 4).unwrap();
    assert!(side.connector.private_data().unwrap().starts_with(part.as_bytes()));
    finish(side.connector.accept(&side.pair, b"welcome", 5), &side.connector, 5).unwrap();
    (side, other)
}

/// The end of the other process.
fn visit(setting: &Setting, part: &str) -> Side {
    let (adapter, _) = setting.adapters();
    let side = Side::new(&adapter, 1, None);
    let to = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let started = side.connector.connect(&side.pair, to, part.as_bytes(), 1);
    finish(started, &side.connector, 1).unwrap();
    assert!(side.connector.private_data().unwrap().starts_with(b"welcome"));
    finish(side.connector.complete_connect(2), &side.connector, 2).unwrap();
    side
}

#[test]
#[ignore = "the other process of the tests"]
fn other_process() {
    let Ok(part) = std::env::var(PART) else { return };
    let setting = match std::env::var(PROVIDER).as_deref() {
        Ok("verbs") => crate::verbs(),
        _ => crate::shm(),
    };
    if part == "crowd" {
        return crowd(&setting);
    }
    let side = visit(&setting, &part);
    match &part[..] {
        "echo" => echo(&side),
        "pour" => pour(&side),
        "lend" => lend(&side),
        "wait" => wait(&side),
        "fork" => fork_and_wait(&side),
        part => panic!("no such part: {part}"),
    }
}

/// Whether a send is to tell of its end: at most half of them may be silent in a row.
fn flags(number: u64) -> Flags {
    if number % 8 == 7 {
        Flags::NONE
    } else {
        Flags::SILENT
    }
}

/// Sends while no receive is posted, mostly without a result.
fn send(side: &Side, number: u64, offset: usize, length: usize) {
    let segment = side.buffer.segment(offset, length);
    side.pair.send(number, &[segment], flags(number)).unwrap();
    if flags(number) == Flags::NONE {
        assert_eq!(side.expect(RequestKind::Send, number), Ok(0));
    }
}

fn until_the_end(side: &Side) {
    let started = side.connector.notify_disconnect(9);
    finish(started, &side.connector, 9).unwrap();
}

fn echo(side: &Side) {
    for round in 0..ROUNDS {
        side.post(round, 0, HALF);
        let length = side.expect(RequestKind::Receive, round).unwrap();
        send(side, round, 0, length as usize);
    }
    until_the_end(side);
}

#[test]
fn messages_of_all_sizes_go_there_and_back() {
    let (side, other) = meet(&crate::shm(), "echo", |_| None, |_| ());
    for round in 0..ROUNDS {
        let size = [1, 32, 1500, 4096, 65536][round as usize % 5];
        let data = pattern(round, size);
        side.buffer.fill(0, &data);
        send(&side, round, 0, size);
        side.post(round, HALF, size);
        assert_eq!(side.expect(RequestKind::Receive, round), Ok(size as u32));
        assert!(side.buffer.bytes(HALF, size) == data, "round {round}");
    }
    finish(side.connector.disconnect(8), &side.connector, 8).unwrap();
    other.succeeded();
}

fn pour(side: &Side) {
    for number in 0..POURED {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        side.pair.send_inline(number, &bytes, flags(number)).unwrap();
        if flags(number) == Flags::NONE {
            assert_eq!(side.expect(RequestKind::Send, number), Ok(0));
        }
    }
    until_the_end(side);
}

/// As the connection layer has it: a shared receive queue, sends that are mostly silent.
#[test]
fn a_shared_receive_queue_is_fed_by_another_process() {
    const BUFFERS: u64 = 16;
    let mut kept = None;
    let make = |adapter: &client::Adapter| {
        kept = Some(adapter.create_shared_receive_queue(BUFFERS as u32).unwrap());
        kept.clone()
    };
    let (side, other) = meet(&crate::shm(), "pour", make, |_| ());
    let shared = kept.unwrap();
    let post = |slot: u64| {
        shared.receive(slot, &[side.buffer.segment(slot as usize * 64, 64)]).unwrap();
    };
    (0..BUFFERS).for_each(post);
    for number in 0..POURED {
        let got = side.completion();
        assert_eq!((got.result(), got.queue_pair), (Ok(32), 2));
        assert_eq!(got.request, number % BUFFERS);
        let bytes = side.buffer.bytes(got.request as usize * 64, 8);
        assert_eq!(bytes, number.to_le_bytes());
        post(got.request);
    }
    finish(side.connector.disconnect(8), &side.connector, 8).unwrap();
    other.succeeded();
}

/// Binds the start of the buffer, and tells of it.
fn offer(side: &Side, access: RemoteAccess) -> RemoteMemory {
    let memory = side.bind(SIZE, access);
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&memory.address.to_le_bytes());
    bytes[8..].copy_from_slice(&memory.token.to_le_bytes());
    side.pair.send_inline(1, &bytes, Flags::SILENT).unwrap();
    memory
}

/// Waits for a word of the other end's.
fn word(side: &Side) {
    side.post(7, BUFFER - 64, 64);
    side.expect(RequestKind::Receive, 7).unwrap();
}

fn take_back(side: &Side, memory: RemoteMemory) {
    side.pair.invalidate(8, memory.token, Flags::NONE).unwrap();
    assert_eq!(side.expect(RequestKind::Invalidate, 8), Ok(0));
}

fn lend(side: &Side) {
    side.buffer.fill(0, &pattern(1, SIZE));
    let readable = offer(side, RemoteAccess::Read);
    word(side);
    take_back(side, readable);
    let writable = offer(side, RemoteAccess::Write);
    word(side);
    assert!(side.buffer.bytes(0, SIZE) == pattern(2, SIZE));
    take_back(side, writable);
    side.pair.send_inline(2, b"over", Flags::SILENT).unwrap();
    until_the_end(side);
    assert!(side.buffer.bytes(0, SIZE) == pattern(2, SIZE));
}

/// This process reaches into the other, its child: what even a strict kernel allows (Yama).
#[test]
fn memory_of_another_process_is_read_and_written() {
    let (side, other) = meet(&crate::shm(), "lend", |_| None, |_| ());
    let offered = || {
        word(&side);
        let bytes = side.buffer.bytes(BUFFER - 64, 12);
        let address = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        RemoteMemory { address, token: u32::from_le_bytes(bytes[8..].try_into().unwrap()) }
    };
    let all = [side.buffer.segment(0, SIZE)];
    let memory = offered();
    side.pair.read(1, &all, memory, Flags::NONE).unwrap();
    assert_eq!(side.expect(RequestKind::Read, 1), Ok(0));
    assert!(side.buffer.bytes(0, SIZE) == pattern(1, SIZE));
    side.pair.send_inline(2, b"read", Flags::SILENT).unwrap();
    let memory = offered();
    side.buffer.fill(0, &pattern(2, SIZE));
    side.pair.write(3, &all, memory, Flags::SILENT).unwrap();
    side.pair.send_inline(4, b"written", Flags::SILENT).unwrap();
    word(&side);
    side.buffer.fill(0, &pattern(3, SIZE));
    side.pair.write(5, &all, memory, Flags::NONE).unwrap();
    assert_eq!(side.expect(RequestKind::Write, 5), Err(Error::RemoteAccess));
    finish(side.connector.disconnect(6), &side.connector, 6).unwrap();
    other.succeeded();
}

/// Says that it is here, and nothing more until the test ends its standard input.
fn wait(side: &Side) {
    side.pair.send_inline(3, b"x", Flags::NONE).unwrap();
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

/// With a child of its own, which lives until the test ends its standard input.
fn fork_and_wait(side: &Side) {
    // SAFETY: the child makes system calls only.
    if unsafe { libc::fork() } == 0 {
        let mut byte = 0u8;
        // SAFETY: a valid place; the process ends without unwinding.
        unsafe {
            while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
            libc::_exit(0);
        }
    }
    wait(side);
}

/// Two receives are posted, for what the other process says first and for what never comes.
fn two_receives(side: &Side) {
    side.post(1, 0, 8);
    side.post(2, 8, 8);
}

/// D12 needs it: the kernel tells the end of a process that cannot tell it itself.
fn killed_in(setting: &Setting, part: &str) {
    let (side, mut other) = meet(setting, part, |_| None, two_receives);
    // Kept open: a child of the other process lives as long.
    let _input = other.0.stdin.take();
    assert_eq!(side.expect(RequestKind::Receive, 1), Ok(1));
    assert_eq!(side.connector.notify_disconnect(6), Ok(Started::Pending));
    other.kill();
    assert_eq!(reported(&side.connector).request, 6);
    assert_eq!(side.expect(RequestKind::Receive, 2), Err(Error::Cancelled));
}

#[test]
fn a_killed_peer_ends_the_connection() {
    killed_in(&crate::shm(), "wait");
}

#[test]
fn a_killed_peers_child_does_not_keep_the_connection() {
    killed_in(&crate::shm(), "fork");
}

mod verbs {
    #[test]
    #[ignore = "needs an RDMA device: scripts/test --rdma"]
    fn a_killed_peer_ends_the_connection() {
        super::killed_in(&crate::verbs(), "wait");
    }
}

/// A thread that only waits for the completion queue learns it too.
#[test]
fn a_killed_peer_ends_the_requests() {
    let (side, mut other) = meet(&crate::shm(), "wait", |_| None, two_receives);
    assert_eq!(side.expect(RequestKind::Receive, 1), Ok(1));
    // There is no buffer for it.
    side.send(7, 0, 8);
    other.kill();
    assert!(side.expect(RequestKind::Send, 7).is_err());
    assert_eq!(side.expect(RequestKind::Receive, 2), Err(Error::Cancelled));
    let segment = side.buffer.segment(0, 8);
    let late = side.pair.send(3, &[segment], Flags::NONE);
    assert!(late.and_then(|()| side.expect(RequestKind::Send, 3)).is_err());
}

/// Sets how many descriptors this process may have; how many it could before.
fn limit_descriptors(most: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    let before = std::mem::replace(&mut limit.rlim_cur, most);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    before
}

/// Listens, and has no descriptor for who comes: a process of its own, since the limit is its tests' as well.
fn crowd(setting: &Setting) {
    let (a, b) = setting.adapters();
    let listener = setting.listener(&b);
    let (a, b) = (Side::new(&a, 1, None), Side::new(&b, 2, None));
    let to = listener.local_address().unwrap();
    assert_eq!(a.connector.connect(&a.pair, to, b"hello", 1), Ok(Started::Pending));
    assert_eq!(listener.get_connection_request(&b.connector, 2), Ok(Started::Pending));
    // The standard ones are open.
    let before = limit_descriptors(3);
    let refused = Reported { request: 2, result: Err(Error::InsufficientResources) };
    assert_eq!(reported(&listener), refused);
    // A completion that cannot be taken wakes no thread there.
    assert_eq!(listener.next_result(), None);
    assert!(!is_readable(listener.descriptor()));
    limit_descriptors(before);
    assert_eq!(hand_over(&a, &b, &listener), None);
    assert!(b.connector.private_data().unwrap().starts_with(b"hello"));
}

#[test]
fn a_listener_without_descriptors_tells_so_and_is_quiet() {
    let setting = crate::shm();
    let (_, adapter) = setting.adapters();
    Other::start(&setting, "crowd", &setting.listener(&adapter)).succeeded();
}
