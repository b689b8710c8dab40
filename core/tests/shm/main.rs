//! The objects of the `shm` provider between two processes: messages, RDMA, and what becomes of a
//! connection whose peer dies. The conformance suite has both ends in one process.
//!
//! A test starts this program once more, as the other process: `other_process` in the part that the
//! environment names.

#[allow(dead_code, reason = "the conformance suite's")]
#[path = "../conformance/buffer.rs"]
mod buffer;
#[allow(dead_code, reason = "the conformance suite's")]
#[path = "../conformance/side.rs"]
mod side;

use buffer::pattern;
use sanshim_core::provider::interface::client::{Listener, SharedReceiveQueue};
use sanshim_core::provider::interface::library::Library;
use sanshim_core::provider::interface::*;
use sanshim_core::provider::shm::objects::SharedMemory;
use side::*;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// What the suite's ends need to know: the provider, and two of its addresses.
pub(crate) struct Setting {
    pub(crate) library: Arc<Library>,
    pub(crate) here: SocketAddr,
    pub(crate) there: SocketAddr,
}

fn setting() -> Setting {
    Setting {
        library: Library::built_in::<SharedMemory>(),
        here: "127.0.0.1:0".parse().unwrap(),
        there: "127.0.0.2:0".parse().unwrap(),
    }
}

const PART: &str = "SANSHIM_SHM_PART";
const ADDRESS: &str = "SANSHIM_SHM_ADDRESS";
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
    fn start(part: &str, listener: &Listener) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "other_process"])
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
    part: &str,
    shared: impl FnOnce(&client::Adapter) -> Option<SharedReceiveQueue>,
    prepare: impl FnOnce(&Side),
) -> (Side, Other) {
    let setting = setting();
    let (_, adapter) = setting.adapters();
    let listener = setting.listener(&adapter);
    let shared = shared(&adapter);
    let side = Side::new(&adapter, 2, shared.as_ref());
    prepare(&side);
    let other = Other::start(part, &listener);
    finish(listener.get_connection_request(&side.connector, 4), &listener, 4).unwrap();
    assert_eq!(side.connector.private_data().unwrap(), part.as_bytes());
    finish(side.connector.accept(&side.pair, b"welcome", 5), &side.connector, 5).unwrap();
    (side, other)
}

/// The end of the other process.
fn visit(part: &str) -> Side {
    let (adapter, _) = setting().adapters();
    let side = Side::new(&adapter, 1, None);
    let to = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let started = side.connector.connect(&side.pair, to, part.as_bytes(), 1);
    finish(started, &side.connector, 1).unwrap();
    assert_eq!(side.connector.private_data().unwrap(), b"welcome");
    finish(side.connector.complete_connect(2), &side.connector, 2).unwrap();
    side
}

#[test]
#[ignore = "the other process of the tests"]
fn other_process() {
    let Ok(part) = std::env::var(PART) else { return };
    let side = visit(&part);
    match &part[..] {
        "echo" => echo(&side),
        "pour" => pour(&side),
        "lend" => lend(&side),
        "wait" => wait(&side),
        "fork" => fork_and_wait(&side),
        part => panic!("no such part: {part}"),
    }
}

/// Sends without a result.
fn send(side: &Side, request: u64, offset: usize, length: usize) {
    let segment = side.buffer.segment(offset, length);
    side.pair.send(request, &[segment], Flags::SILENT).unwrap();
}

fn until_the_end(side: &Side) {
    let started = side.connector.notify_disconnect(9);
    finish(started, &side.connector, 9).unwrap();
}

fn echo(side: &Side) {
    for round in 0..ROUNDS {
        side.post(round, 0, HALF);
        let length = side.expect(RequestKind::Receive, round).unwrap();
        send(side, 1000 + round, 0, length as usize);
    }
    until_the_end(side);
}

#[test]
fn messages_of_all_sizes_go_there_and_back() {
    let (side, other) = meet("echo", |_| None, |_| ());
    for round in 0..ROUNDS {
        let size = [1, 32, 1500, 4096, 65536][round as usize % 5];
        let data = pattern(round, size);
        side.post(round, HALF, size);
        side.buffer.fill(0, &data);
        send(&side, 1000 + round, 0, size);
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
        let tells = number % 8 == 7;
        let flags = if tells { Flags::NONE } else { Flags::SILENT };
        side.pair.send_inline(number, &bytes, flags).unwrap();
        if tells {
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
    let (side, other) = meet("pour", make, |_| ());
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
    let (side, other) = meet("lend", |_| None, |_| ());
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

fn killed_in(part: &str) {
    let (side, mut other) = meet(
        part,
        |_| None,
        |side| {
            side.post(1, 0, 8);
            side.post(2, 8, 8);
        },
    );
    // Kept open: a child of the other process lives as long.
    let _input = other.0.stdin.take();
    assert_eq!(side.expect(RequestKind::Receive, 1), Ok(1));
    assert_eq!(side.connector.notify_disconnect(6), Ok(Started::Pending));
    // There is no buffer for it.
    side.send(7, 0, 8);
    other.kill();
    assert_eq!(reported(&side.connector), Reported { request: 6, result: Ok(()) });
    assert!(side.expect(RequestKind::Send, 7).is_err());
    assert_eq!(side.expect(RequestKind::Receive, 2), Err(Error::Cancelled));
}

/// D12 needs it.
#[test]
fn a_killed_peer_ends_the_connection() {
    killed_in("wait");
}

#[test]
fn a_killed_peers_child_does_not_keep_the_connection() {
    killed_in("fork");
}

/// Who only waits for the completion queue learns it too.
#[test]
fn a_killed_peer_ends_the_requests() {
    let (side, mut other) = meet(
        "wait",
        |_| None,
        |side| {
            side.post(1, 0, 8);
            side.post(2, 8, 8);
        },
    );
    assert_eq!(side.expect(RequestKind::Receive, 1), Ok(1));
    other.kill();
    assert_eq!(side.expect(RequestKind::Receive, 2), Err(Error::Cancelled));
    // What is bound for nobody is let go.
    let segment = side.buffer.segment(0, 8);
    let late = side.pair.send(3, &[segment], Flags::NONE);
    assert!(late.and_then(|()| side.expect(RequestKind::Send, 3)).is_err());
}
