//! How a link ends: closed, broken, refused, or without its device.

use super::{ends, ends_between, link_over, links_over, pattern, port_at, relative};
use crate::fabric::link::{ended, Tell};
use crate::provider::interface::{Error, Flags};
use crate::provider::shm::{CLOSED, FAILED};
use crate::provider::simulation::{lose_link, remove_device};
use crate::sys::Errno;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

#[test]
fn a_closed_end_is_drained_only_when_the_peer_has_everything() {
    let (a, b) = ends("192.0.2.107", "192.0.2.108");
    assert_eq!(a.send(&pattern(0, 30_000)), 30_000);
    a.stream().own().sending.0.finished.fetch_or(CLOSED, SeqCst);
    let next = a.stream().endpoint.session.last_sent().wrapping_add(1);
    while !a.link.flush(next) {}
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
    assert!(a.link.has_failed() && !a.link.look_for_break(), "its peer may have died");
    assert_eq!(a.finished() & FAILED, FAILED);
    while !a.link.look_for_break() {}
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
    while !a.link.flush(next) {}
    lose_link("192.0.2.133".parse().unwrap());
    b.send(b"after");
    b.link.fail(Error::ConnectionReset);
    assert!(b.link.has_failed() && !b.link.look_for_break());
    assert_eq!(b.receive(30_000), pattern(0, 30_000));
}

/// What arrived for an ended link, and nobody took, had one of the port's buffers, of which there are 128.
#[test]
fn links_that_end_with_something_under_way_leave_their_buffers() {
    let ((from, _), (to, _)) = (port_at("192.0.2.61", 0), port_at("192.0.2.62", 0));
    for _ in 0..300 {
        let (a, b) = links_over(from, to);
        to.catch_up();
        let _ = ended::let_go();
        a.pair().send_inline(0, b"under way", Flags::SILENT).unwrap();
        b.end();
        a.end();
    }
    let (a, b) = ends_between(links_over(from, to));
    a.send(b"at last");
    assert_eq!(b.receive(10), b"at last");
}

/// All links of a port share its receives. One that is idle has few, and many have enough.
#[test]
fn receives_grow_with_the_links_and_carry_them_all() {
    let ((from, _), (to, _)) = (port_at("192.0.2.65", 0), port_at("192.0.2.66", 0));
    let mut all = Vec::new();
    let mut counts = Vec::new();
    for _ in 0..24 {
        all.push(ends_between(links_over(from, to)));
        counts.push(to.receives());
    }
    assert!(counts[0] <= 48 && counts.is_sorted() && counts[23] >= 3 * counts[0], "{counts:?}");
    for (at, (a, _)) in all.iter().enumerate() {
        assert_eq!(a.send(&pattern(at, 20_000)), 20_000);
    }
    for (at, (_, b)) in all.iter().enumerate() {
        assert_eq!(b.receive(20_000), pattern(at, 20_000));
    }
    all.clear();
    assert_eq!(to.receives(), counts[23], "they stay");
}

/// A number is a queue pair's, and a port's list of links as long as there were at a time.
#[test]
fn numbers_are_free_when_their_queue_pairs_are_gone() {
    let (port, _) = port_at("192.0.2.63", 0);
    let first = link_over(port);
    let number = first.number();
    drop(port.remove_link(number));
    drop(first);
    assert_eq!(port.reserve().unwrap() as u32, number as u32);
}

#[test]
fn a_removed_device_ends_its_connections() {
    let (a, b) = ends("192.0.2.131", "192.0.2.132");
    b.send(b"on its way");
    assert!(!b.link.port().device.take_loss());
    remove_device("192.0.2.132".parse().unwrap());
    assert!(b.link.port().device.take_loss());
    assert!(!b.link.port().device.take_loss(), "it is told once");
    b.link.port().each_link(|link| link.lose_device());
    assert!(b.link.has_failed());
    assert_eq!(b.link.error(), Errno(libc::ECONNRESET));
    assert!(b.finished() & FAILED != 0);
    let mut left = 0;
    b.link.port().each_link(|_| left += 1);
    assert_eq!(left, 0, "nothing of it is kept");
    b.link.port().device.retire();
    assert!(b.link.port().close() && b.link.port().device.objects().is_err());
    // What is done to it afterwards reaches nothing.
    b.send(b"more");
    b.link.tick(Tell::Certain);
    b.link.close(None);
    assert!(b.link.is_drained());
    drop(a);
}

#[test]
fn an_end_of_which_nothing_tells_is_found_by_who_suspects_it() {
    for by_relative in [false, true] {
        let (a, b) = ends("192.0.2.177", "192.0.2.178");
        let one = relative(&a);
        let suspect = || match by_relative {
            true => {
                one.link.look_for_end();
                a.link.tick(Tell::Certain);
            }
            false => a.link.look_for_end(),
        };
        suspect();
        a.send(b"goes on");
        assert_eq!(b.receive(10), b"goes on");
        a.link.poll();
        b.link.end();
        a.link.poll();
        assert!(!a.link.has_failed(), "nothing was under way");
        suspect();
        assert!(a.link.has_failed());
        assert_eq!(one.finished() & FAILED, FAILED);
    }
}
