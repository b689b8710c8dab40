//! RDMA read and write, and whom memory is reachable for (M1–M6).

use crate::buffer::{pattern, Buffer};
use crate::side::*;
use crate::{suite, Setting};
use sanshim_core::provider::interface::RemoteAccess::{Read, Write};
use sanshim_core::provider::interface::*;

const SIZE: usize = 300_000;

fn read_from(a: &Side, memory: RemoteMemory, length: usize) -> ProviderResult<u32> {
    a.pair.read(1, &[a.buffer.segment(0, length)], memory, Flags::NONE)?;
    a.expect(RequestKind::Read, 1)
}

fn write_to(a: &Side, memory: RemoteMemory, length: usize) -> ProviderResult<u32> {
    a.pair.write(1, &[a.buffer.segment(0, length)], memory, Flags::NONE)?;
    a.expect(RequestKind::Write, 1)
}

fn s4_a_peers_memory_is_read(setting: &Setting) {
    let (a, b) = setting.connected();
    let data = pattern(3, SIZE);
    b.buffer.fill(0, &data);
    let memory = b.bind(SIZE, Read);
    assert_eq!(read_from(&a, memory, SIZE), Ok(0));
    assert!(a.buffer.bytes(0, SIZE) == data);
    // Part of it, from the middle.
    let middle = RemoteMemory { address: memory.address + 1000, ..memory };
    assert_eq!(read_from(&a, middle, 5), Ok(0));
    assert_eq!(a.buffer.bytes(0, 5), data[1000..1005]);
}

fn s5_a_peers_memory_is_written(setting: &Setting) {
    let (a, b) = setting.connected();
    let data = pattern(4, SIZE);
    a.buffer.fill(0, &data);
    let memory = b.bind(SIZE, Write);
    assert_eq!(write_to(&a, memory, SIZE), Ok(0));
    assert!(b.buffer.bytes(0, SIZE) == data);
    assert_eq!(b.buffer.bytes(SIZE, 64), [0; 64]);
}

fn a_message_after_a_write_finds_it_written(setting: &Setting) {
    let (a, b) = setting.connected();
    let memory = b.bind(SIZE, Write);
    for round in 0..8 {
        let data = pattern(round, SIZE);
        a.buffer.fill(0, &data);
        b.post(7, SIZE, 8);
        a.pair.write(1, &[a.buffer.segment(0, SIZE)], memory, Flags::SILENT).unwrap();
        a.send(2, 0, 8);
        assert_eq!(b.expect(RequestKind::Receive, 7), Ok(8));
        assert!(b.buffer.bytes(0, SIZE) == data, "round {round}");
        assert_eq!(a.expect(RequestKind::Send, 2), Ok(0));
    }
}

/// In order with messages, also where its receive comes later.
fn a_write_tells_of_itself(setting: &Setting) {
    let (a, b) = setting.connected();
    let memory = b.bind(SIZE, Write);
    let data = pattern(5, SIZE);
    a.buffer.fill(0, &data);
    for (first, late) in [(10, false), (20, true)] {
        let post = || (0..3).for_each(|i| b.post(first + i, SIZE + 8 * i as usize, 8));
        if !late {
            post();
        }
        a.send(1, 0, 8);
        let tells = Flags::SILENT | Flags::TELL;
        a.pair.write(2, &[a.buffer.segment(0, SIZE)], memory, tells).unwrap();
        a.send(3, 0, 3);
        if late {
            post();
        }
        assert_eq!(b.expect(RequestKind::Receive, first), Ok(8));
        assert_eq!(b.expect(RequestKind::Told, first + 1), Ok(SIZE as u32));
        assert!(b.buffer.bytes(0, SIZE) == data);
        assert_eq!(b.buffer.bytes(SIZE + 8, 8), [0; 8], "its receive's buffer stays as it was");
        assert_eq!(b.expect(RequestKind::Receive, first + 2), Ok(3));
        assert_eq!(a.expect(RequestKind::Send, 1), Ok(0));
        assert_eq!(a.expect(RequestKind::Send, 3), Ok(0));
    }
}

fn m3_what_may_be_read_cannot_be_written(setting: &Setting) {
    let (a, b) = setting.connected();
    let memory = b.bind(64, Read);
    a.buffer.fill(0, &[9; 64]);
    assert_eq!(write_to(&a, memory, 64), Err(Error::RemoteAccess));
    assert_eq!(b.buffer.bytes(0, 64), [0; 64]);
}

fn m3_what_may_be_written_cannot_be_read(setting: &Setting) {
    let (a, b) = setting.connected();
    b.buffer.fill(0, &[9; 64]);
    let memory = b.bind(64, Write);
    assert_eq!(read_from(&a, memory, 64), Err(Error::RemoteAccess));
    assert_eq!(a.buffer.bytes(0, 64), [0; 64]);
}

/// The region is as large as what is bound: Soft-RoCE checks no more than the region.
fn m2_nothing_beyond_what_was_bound(setting: &Setting) {
    let bound = |b: &Side, access| {
        let memory = Buffer::new(&b.adapter, 64);
        let range = memory.address()..memory.end();
        let token = b.pair.bind(500, &memory.region, range, access, Flags::NONE).unwrap();
        b.expect(RequestKind::Bind, 500).unwrap();
        (RemoteMemory { address: memory.address(), token }, memory)
    };
    let (a, b) = setting.connected();
    let (remote, memory) = bound(&b, Read);
    assert_eq!(read_from(&a, remote, 65), Err(Error::RemoteAccess));
    // The queue pair goes before the memory.
    drop((b, memory));
    let (a, b) = setting.connected();
    let (remote, memory) = bound(&b, Write);
    a.buffer.fill(0, &[9; 8]);
    let before = RemoteMemory { address: remote.address - 1, ..remote };
    assert_eq!(write_to(&a, before, 8), Err(Error::RemoteAccess));
    assert_eq!(memory.bytes(0, 8), [0; 8]);
    drop((b, memory));
}

fn m2_nothing_for_the_peer_of_another_connection(setting: &Setting) {
    let (a, b) = setting.adapters();
    let listener = setting.listener(&b);
    let (a1, b1) = (Side::new(&a, 1, None), Side::new(&b, 2, None));
    let (a2, b2) = (Side::new(&a, 3, None), Side::new(&b, 4, None));
    connect(&a1, &b1, &listener);
    connect(&a2, &b2, &listener);
    b1.buffer.fill(0, &[9; 64]);
    let memory = b1.bind(64, Read);
    assert_eq!(read_from(&a2, memory, 64), Err(Error::RemoteAccess));
    assert_eq!(a2.buffer.bytes(0, 64), [0; 64]);
    assert_eq!(read_from(&a1, memory, 64), Ok(0));
}

fn m5_nothing_after_an_invalidation(setting: &Setting) {
    let (a, b) = setting.connected();
    let memory = b.bind(64, Write);
    assert_eq!(write_to(&a, memory, 64), Ok(0));
    b.pair.invalidate(8, memory.token, Flags::NONE).unwrap();
    assert_eq!(b.expect(RequestKind::Invalidate, 8), Ok(0));
    a.buffer.fill(0, &[9; 64]);
    assert_eq!(write_to(&a, memory, 64), Err(Error::RemoteAccess));
    assert_eq!(b.buffer.bytes(0, 64), [0; 64]);
}

/// The peer's process may be stopped: then earlier requests wait for as long.
fn m5_nothing_after_an_invalidation_at_once(setting: &Setting) {
    for waiting in [0, 3] {
        let (a, b) = setting.connected();
        let memory = Buffer::new(&b.adapter, SIZE);
        let token = {
            let range = memory.address()..memory.end();
            b.pair.bind(1, &memory.region, range, Write, Flags::NONE).unwrap()
        };
        b.expect(RequestKind::Bind, 1).unwrap();
        let remote = RemoteMemory { address: memory.address(), token };
        a.buffer.fill(0, &[9; SIZE]);
        assert_eq!(write_to(&a, remote, SIZE), Ok(0));
        memory.fill(0, &[1; SIZE]);
        for request in 0..waiting {
            b.pair.send(10 + request, &[b.buffer.segment(0, 8)], Flags::NONE).unwrap();
        }
        b.pair.invalidate(0, token, Flags::AT_ONCE).unwrap();
        assert!(b.pair.invalidate(0, token, Flags::AT_ONCE).is_err());
        memory.region.deregister().unwrap();
        assert_eq!(write_to(&a, remote, SIZE), Err(Error::RemoteAccess));
        assert!(memory.bytes(0, SIZE) == [1; SIZE]);
    }
}

/// Its owner has the memory back once the invalidation has ended, whatever was on its way.
fn m5_nothing_lands_after_an_invalidation_that_met_writes(setting: &Setting) {
    const WRITES: u64 = 6;
    for awaited in 0..WRITES {
        let (a, b) = setting.connected();
        let memory = b.bind(SIZE, Write);
        a.buffer.fill(0, &[9; SIZE]);
        for request in 0..WRITES {
            a.pair.write(request, &[a.buffer.segment(0, SIZE)], memory, Flags::NONE).unwrap();
        }
        let before = (0..awaited).map(|request| a.expect(RequestKind::Write, request));
        assert!(before.into_iter().all(|outcome| outcome == Ok(0)));
        b.pair.invalidate(8, memory.token, Flags::NONE).unwrap();
        // A write that is refused may end the connection, and the invalidation with it.
        let _ = b.expect(RequestKind::Invalidate, 8);
        let own = pattern(awaited, SIZE);
        b.buffer.fill(0, &own);
        let after: Vec<_> =
            (awaited..WRITES).map(|request| a.expect(RequestKind::Write, request)).collect();
        assert!(
            after.is_sorted_by_key(ProviderResult::is_err),
            "one after a refused one: {after:?}"
        );
        assert!(b.buffer.bytes(0, SIZE) == own, "{awaited} awaited, then {after:?}");
    }
}

fn m2_nothing_after_the_connection(setting: &Setting) {
    let (a, b) = setting.connected();
    let memory = b.bind(64, Write);
    finish(b.connector.disconnect(3), &b.connector, 3).unwrap();
    a.buffer.fill(0, &[9; 64]);
    assert!(write_to(&a, memory, 64).is_err());
    assert_eq!(b.buffer.bytes(0, 64), [0; 64]);
}

fn m2_only_registered_memory_can_be_bound(setting: &Setting) {
    let (_a, b) = setting.connected();
    let beyond = b.buffer.end()..b.buffer.end() + 8;
    let bound = b.pair.bind(1, &b.buffer.region, beyond, Read, Flags::NONE);
    let bound = bound.and_then(|_| b.expect(RequestKind::Bind, 1));
    assert!(bound.is_err());
    let region = b.adapter.create_memory_region().unwrap();
    let empty = b.pair.bind(1, &region, 0..8, Read, Flags::NONE);
    assert_eq!(empty, Err(Error::InvalidParameter));
}

fn m1_requests_name_registered_memory_only(setting: &Setting) {
    // At once, or as the request's end.
    let outcome = |side: &Side, segment: MemoryPiece| {
        side.pair.send(1, &[segment], Flags::NONE)?;
        side.expect(RequestKind::Send, 1)
    };
    let (a, b) = setting.connected();
    b.post(1, 0, 64);
    let good = a.buffer.segment(0, 8);
    let beyond = MemoryPiece { address: a.buffer.end() - 4, ..good };
    assert_eq!(outcome(&a, beyond), Err(Error::LocalAccess));

    let (a, b) = setting.connected();
    b.post(1, 0, 64);
    let gone = Buffer::new(&a.adapter, 4096);
    let segment = gone.segment(0, 8);
    gone.region.deregister().unwrap();
    assert_eq!(gone.region.local_token(), Err(Error::InvalidParameter));
    assert_eq!(outcome(&a, segment), Err(Error::LocalAccess));
}

fn m6_memory_is_registered_again_after_its_end(setting: &Setting) {
    let (a, b) = setting.connected();
    for round in 0..4 {
        let memory = Buffer::new(&b.adapter, SIZE);
        let token = {
            let range = memory.address()..memory.end();
            b.pair.bind(1, &memory.region, range, Write, Flags::NONE).unwrap()
        };
        b.expect(RequestKind::Bind, 1).unwrap();
        let data = pattern(round, SIZE);
        a.buffer.fill(0, &data);
        assert_eq!(write_to(&a, RemoteMemory { address: memory.address(), token }, SIZE), Ok(0));
        assert!(memory.bytes(0, SIZE) == data);
        b.pair.invalidate(2, token, Flags::NONE).unwrap();
        b.expect(RequestKind::Invalidate, 2).unwrap();
        memory.region.deregister().unwrap();
        assert_eq!(memory.region.deregister(), Err(Error::InvalidParameter));
    }
}

suite! {
    m1_requests_name_registered_memory_only
    ; Binds:
    s4_a_peers_memory_is_read
    s5_a_peers_memory_is_written
    a_message_after_a_write_finds_it_written
    m3_what_may_be_read_cannot_be_written
    m3_what_may_be_written_cannot_be_read
    m2_nothing_beyond_what_was_bound
    m2_nothing_for_the_peer_of_another_connection
    m5_nothing_after_an_invalidation
    m5_nothing_after_an_invalidation_at_once
    m5_nothing_lands_after_an_invalidation_that_met_writes
    m2_nothing_after_the_connection
    m2_only_registered_memory_can_be_bound
    m6_memory_is_registered_again_after_its_end
    ; Tells:
    a_write_tells_of_itself
}
