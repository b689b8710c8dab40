//! Memory of a program that the other end reads or writes by RDMA: for one transfer and one peer, and as long as it is lent.

use super::{ends, pattern, relative, End};
use crate::fabric::frame::{self, FrameKind, FrameState};
use crate::fabric::link::Tell;
use crate::provider::shm::{Refusal, Right};
use crate::session::transfer::Abilities;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Two addresses of the simulation, and two of shared memory.
const PLACES: [[&str; 2]; 2] = [["192.0.2.150", "192.0.2.151"], ["127.0.0.150", "127.0.0.151"]];
const LENGTH: usize = 100_000;

/// Runs `f` while a thread takes in what comes for that end, as its helper does.
fn with_helper<R>(of: &End, f: impl FnOnce() -> R) -> R {
    let (link, over) = (&of.link, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !over.load(Relaxed) {
                link.poll();
                std::thread::yield_now();
            }
        });
        let result = f();
        over.store(true, Relaxed);
        result
    })
}

fn lend(end: &End, right: Right, key: u32, memory: &mut [u8]) -> bool {
    end.stream().lend(right, key, memory.as_mut_ptr() as u64, memory.len() as u32)
}

fn read(end: &End, (key, taken): (u32, usize), to: &mut [u8]) -> Result<usize, Refusal> {
    end.link.poll();
    // SAFETY: a slice may be written.
    unsafe { end.link.read_lent((key, LENGTH as u32, taken as u32), to, true) }
}

fn write(end: &End, key: u32, from: &[u8]) -> Result<usize, Refusal> {
    end.link.poll();
    // SAFETY: a slice may be read.
    unsafe { end.link.write_lent(key, LENGTH as u32, from.as_ptr(), from.len()) }
}

fn taken_back(end: &End) -> bool {
    let own = end.stream().own();
    !own.readable.0.is_lent() && !own.writable.0.is_lent()
}

#[test]
fn s4_lent_memory_is_read_piece_by_piece_and_the_owner_knows() {
    for [a, b] in PLACES {
        let (a, b) = ends(a, b);
        let (mut memory, mut to) = (pattern(0, LENGTH), vec![0; LENGTH]);
        assert!(lend(&a, Right::Read, 1, &mut memory));
        assert_eq!(read(&b, (1, 0), &mut to[..60_001]), Ok(60_001));
        a.link.poll();
        assert_eq!(a.stream().own().readable.0.done(), 60_001);
        assert_eq!(read(&b, (1, 60_001), &mut to[60_001..]), Ok(LENGTH - 60_001));
        assert_eq!(to, memory);
        a.link.poll();
        // Nobody need be asked for what is over.
        assert_eq!(a.stream().take_back_readable(LENGTH as u32), LENGTH as u32);
        assert_eq!(b.link.accesses_done(), [(2, LENGTH as u64), (0, 0)]);
        assert_eq!(read(&b, (1, 0), &mut to), Err(Refusal::NotRegistered));
        assert!(taken_back(&a) && !a.link.has_failed() && !b.link.has_failed());
    }
}

#[test]
fn s5_a_posted_receive_is_written_once_and_its_owner_knows() {
    for [a, b] in PLACES {
        let (a, b) = ends(a, b);
        let (mut memory, from) = (vec![0; LENGTH], pattern(7, 70_001));
        assert!(lend(&a, Right::Write, 1, &mut memory));
        assert_eq!(write(&b, 1, &from), Ok(from.len()));
        a.link.poll();
        assert_eq!(a.stream().take_back_writable(LENGTH as u32) as usize, from.len());
        assert!(memory.starts_with(&from) && memory[from.len()..].iter().all(|byte| *byte == 0));
        assert_eq!(write(&b, 1, &from), Err(Refusal::NotRegistered));
        assert_eq!(b.link.accesses_done(), [(0, 0), (1, from.len() as u64)]);
        assert!(taken_back(&a) && !a.link.has_failed() && !b.link.has_failed());
    }
}

#[test]
fn memory_is_lent_once_nothing_else_is_under_way() {
    let (a, b) = ends("192.0.2.152", "192.0.2.153");
    let mut memory = vec![0; LENGTH];
    a.overwhelm_peer();
    assert!(!lend(&a, Right::Write, 1, &mut memory), "the peer takes nothing");
    assert!(taken_back(&a));
    assert!(with_helper(&b, || lend(&a, Right::Write, 2, &mut memory)));
    assert_eq!(write(&b, 2, &pattern(0, LENGTH)), Ok(LENGTH));
    assert!(!a.link.has_failed() && !b.link.has_failed());
}

#[test]
fn m5_a_peer_that_is_asked_tells_how_much_it_used_and_uses_no_more() {
    for [a, b] in PLACES {
        let (a, b) = ends(a, b);
        let (mut memory, mut to) = (pattern(0, LENGTH), vec![0; LENGTH]);
        for key in [1, 2] {
            assert!(lend(&a, Right::Read, key, &mut memory));
            assert_eq!(read(&b, (key, 0), &mut to[..500]), Ok(500));
            assert_eq!(with_helper(&b, || a.stream().take_back_readable(LENGTH as u32)), 500);
            assert_eq!(read(&b, (key, 500), &mut to), Err(Refusal::NotRegistered));
            assert!(lend(&a, Right::Write, key, &mut memory));
            assert_eq!(with_helper(&b, || a.stream().take_back_writable(LENGTH as u32)), 0);
            assert_eq!(write(&b, key, &to), Err(Refusal::NotRegistered));
        }
        assert!(taken_back(&a) && !a.link.has_failed() && !b.link.has_failed());
    }
}

/// It is stopped, or its processors are busy elsewhere. Over shared memory it then takes not even what was sent before.
#[test]
fn a_peer_that_does_not_answer_keeps_no_memory() {
    for [a, b] in [["192.0.2.162", "192.0.2.163"], ["127.0.0.162", "127.0.0.163"]] {
        let (a, b) = ends(a, b);
        let (mut memory, mut to) = (pattern(0, LENGTH), vec![0; LENGTH]);
        assert!(lend(&a, Right::Read, 1, &mut memory));
        assert_eq!(a.stream().take_back_readable(LENGTH as u32), 0);
        assert!(!a.link.has_failed(), "it went on without the peer");
        assert!(!lend(&a, Right::Read, 2, &mut memory), "messages, until the peer lives");
        assert_eq!(read(&b, (1, 0), &mut to), Err(Refusal::NotRegistered));
        a.link.poll();
        assert!(lend(&a, Right::Read, 3, &mut memory), "it answered late");
        assert_eq!(read(&b, (3, 0), &mut to), Ok(LENGTH));
        a.link.poll();
        assert_eq!(a.stream().take_back_readable(LENGTH as u32) as usize, LENGTH);
        assert!(!a.link.has_failed() && !b.link.has_failed());
    }
}

/// Whoever knows the address and the token still reaches nothing.
#[test]
fn m2_the_device_refuses_what_is_not_lent_any_more() {
    for (kind, right) in [(FrameKind::ReadLent, Right::Read), (FrameKind::WroteLent, Right::Write)]
    {
        let (a, b) = ends("192.0.2.152", "192.0.2.153");
        let (mut memory, mut to) = (pattern(0, LENGTH), vec![0; LENGTH]);
        let before = memory.clone();
        assert!(lend(&a, right, 1, &mut memory));
        b.link.poll();
        // It says that it is done, and goes on.
        let mut lie = frame::encode(kind, 12, &FrameState::default()).to_vec();
        lie.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        a.link.arrived(&lie);
        match right {
            Right::Read => assert_eq!(a.stream().take_back_readable(LENGTH as u32), 0),
            Right::Write => assert_eq!(a.stream().take_back_writable(LENGTH as u32), 0),
        }
        let used = match right {
            Right::Read => read(&b, (1, 0), &mut to),
            Right::Write => write(&b, 1, &to),
        };
        assert_eq!(used, Err(Refusal::Gone));
        assert!(b.link.has_failed() && memory == before && to.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn an_end_that_is_told_of_an_impossible_use_ends_the_connection() {
    for lie in [[1u32, LENGTH as u32 + 1, 0], [2, 0, 0], [1, 1, 1]] {
        let (a, _b) = ends("192.0.2.154", "192.0.2.155");
        let mut memory = pattern(0, LENGTH);
        assert!(lend(&a, Right::Read, 1, &mut memory));
        if lie[2] == 1 {
            assert_eq!(a.stream().take_back_readable(LENGTH as u32), 0);
        }
        let mut frame = frame::encode(FrameKind::ReadLent, 12, &FrameState::default()).to_vec();
        lie.iter().for_each(|word| frame.extend_from_slice(&word.to_le_bytes()));
        a.link.arrived(&frame);
        assert!(a.link.has_failed(), "{lie:?}");
        a.stream().take_back_readable(LENGTH as u32);
        assert!(taken_back(&a));
    }
}

#[test]
fn memory_goes_home_when_the_link_breaks() {
    for break_it in [0, 1] {
        let (a, b) = ends("192.0.2.156", "192.0.2.157");
        let (mut memory, mut to) = (pattern(0, LENGTH), vec![0; LENGTH]);
        assert!(lend(&a, Right::Read, 1, &mut memory));
        b.link.poll();
        let breaks: &End = [&a, &b][break_it];
        breaks.link.pair().flush().unwrap();
        assert_eq!(read(&b, (1, 0), &mut to), Err(Refusal::Gone));
        a.link.push(Tell::All);
        a.link.poll();
        a.stream().take_back_readable(LENGTH as u32);
        assert!(taken_back(&a), "{break_it}");
    }
}

/// A relative has no queue pair, and the process that has it does not have the memory.
#[test]
fn only_the_process_with_the_queue_pair_lends() {
    let (a, _b) = ends("192.0.2.158", "192.0.2.159");
    a.stream().endpoint.offer(Abilities { threshold: 1, read: true, write: true });
    assert!(a.stream().abilities().read);
    let relative = relative(&a);
    assert!(!relative.stream().abilities().read && !relative.stream().abilities().write);
    assert!(!lend(&relative, Right::Read, 1, &mut pattern(0, LENGTH)));
}

/// What cannot be pinned goes in messages (S6).
#[test]
fn memory_that_is_not_there_is_not_lent() {
    let (a, _b) = ends("192.0.2.160", "192.0.2.161");
    for right in [Right::Read, Right::Write] {
        assert!(!a.stream().lend(right, 1, 0, 100), "no address");
        assert!(taken_back(&a) && !a.link.has_failed());
    }
    assert_eq!(a.stream().take_back_readable(100), 0);
}
