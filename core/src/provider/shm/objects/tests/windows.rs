//! Memory that the peer may reach, and when it is the owner's again (M2, M5).

use super::*;

/// As when another thread is at its turn while the queue pair is flushed.
#[test]
fn m2_nothing_is_bound_once_the_queue_pair_is_to_end() {
    let (a, b) = joined();
    b.state().ending.store(true, SeqCst);
    assert_eq!(b.state().phase(), CONNECTED);
    let address = b.bytes as u64;
    let token = b.pair.bind(1, &b.region, address, 64, RemoteAccess::Write, Flags::NONE).unwrap();
    assert_eq!(b.state().phase(), ENDED);
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
    assert_eq!(b.state().phase(), ENDED);
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
