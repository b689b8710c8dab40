//! Links that move to another process, of one end or of both, while both streams flow.

use super::{adapter, ends, pattern, relative, End, GEOMETRY};
use crate::fabric::frame::{self, FrameKind, FrameState};
use crate::fabric::link::{LinkPort, Tell};
use crate::fabric::mailbox::Invitation;
use crate::fabric::request::{self, Purpose};
use crate::provider::interface::client::*;
use crate::provider::shm::FINISHED;
use std::sync::atomic::Ordering::SeqCst;

/// A move of `from`'s link to a relative, step by step as the processes' helpers come to it.
struct Move {
    to: End,
    port: &'static LinkPort,
    listener: Listener,
    connector: Option<Connector>,
    came: bool,
    invitation: Invitation,
}

impl Move {
    fn new(from: &End, address: &str, mailbox: u64) -> Self {
        let (adapter, ip) = adapter(address);
        let listener = adapter.create_listener().unwrap();
        listener.bind((ip, 0).into()).unwrap();
        listener.listen(1).unwrap();
        let number = listener.local_address().unwrap().port();
        let port = LinkPort::open(adapter, ip).unwrap();
        let connector = port.device.objects().unwrap().adapter.create_connector().unwrap();
        let _ = listener.get_connection_request(&connector, 1).unwrap();
        let invitation =
            Invitation { number, cookie: [mailbox, 1], mailbox, pid: std::process::id() };
        let to = relative(from);
        Move { to, port, listener, connector: Some(connector), came: false, invitation }
    }

    /// True once it is over.
    fn step(&mut self, from: &End) -> bool {
        // Again where both move: the acceptor gives way.
        if self.to.link.wish(self.invitation.mailbox) {
            from.link.move_to(&self.invitation);
        }
        self.came |= self.listener.next_result().is_some();
        if let Some(connector) = self.connector.take_if(|_| self.came) {
            let (_, purpose) = request::decode(&connector.private_data().unwrap()).unwrap();
            assert_eq!(purpose, Purpose::Invited(self.invitation.cookie));
            let taken = self.to.link.take_control(self.port, self.invitation.mailbox, connector);
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
    let invitation = |mailbox| Invitation { number: 9, cookie: [mailbox, 1], mailbox, pid: 1 };
    assert!(!a.link.move_to(&invitation(71)), "it does not want it");
    assert!(heir.link.wish(73) && heir.link.wish(71));
    assert!(!a.link.move_to(&invitation(73)), "another one wants it meanwhile");
    assert!(a.link.move_to(&invitation(71)) && a.link.is_moving());
    assert!(!heir.link.wish(73), "it is promised");
}

/// Else TCP tells an end of which its peer does not know whether it was in order.
#[test]
fn for_a_relative_too_the_end_is_part_of_what_the_peer_is_to_have() {
    let (a, b) = ends("192.0.2.137", "192.0.2.138");
    let one = relative(&a);
    assert_eq!(one.send(&pattern(0, 1000)), 1000);
    let next = a.stream().endpoint.session.last_sent().wrapping_add(1);
    while !a.link.flush(next) {}
    assert!(one.link.flush(next));
    one.stream().own().sending.0.finished.fetch_or(FINISHED, SeqCst);
    assert!(!one.link.flush(next) && b.finished() & FINISHED == 0);
    while !a.link.flush(next) {}
    assert!(one.link.flush(next) && b.finished() & FINISHED != 0);
}

/// Else TCP's end comes to a peer that does not know that its last bytes were read, and takes that for a reset.
#[test]
fn for_a_relative_too_the_peer_is_to_know_of_all_that_was_read() {
    let (a, b) = ends("192.0.2.151", "192.0.2.152");
    let one = relative(&a);
    let next = a.stream().endpoint.session.last_sent().wrapping_add(1);
    while !a.link.flush(next) {}
    assert!(one.link.flush(next));
    assert_eq!(b.send(&pattern(0, 1000)), 1000);
    while one.receive(1000).is_empty() {
        b.link.flush(next);
        a.link.poll();
    }
    assert!(!one.link.flush(next) && !b.stream().peer_consumed_all());
    while !a.link.flush(next) {}
    assert!(one.link.flush(next));
    b.link.catch_up();
    assert!(b.stream().peer_consumed_all());
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
    let mut again = frame::encode(FrameKind::Move, 18, &FrameState::default()).to_vec();
    again.extend([0; 18]);
    one.to.link.arrived(&again);
    assert!(!one.to.link.has_failed());
}

/// Where the end that follows has offered memory over the old queue pair in vain, and offers it once more over the new one.
#[test]
fn memory_is_offered_once_over_each_queue_pair() {
    let (a, b) = ends("192.0.2.153", "192.0.2.154");
    let mut one = Move::new(&a, "192.0.2.153", 71);
    let step = |one: &Move| {
        for link in [&a.link, &b.link, &one.to.link] {
            link.tick(Tell::All);
            link.poll();
        }
    };
    let mut is_noted = false;
    while !one.step(&a) {
        if a.link.is_foreign() && b.link.is_moving() && !is_noted {
            b.link.note(FrameKind::Ring);
            is_noted = true;
        }
        step(&one);
    }
    let (mut sent, mut received) = (0, 0);
    while received < 4 * GEOMETRY.send_buffer as usize {
        sent += one.to.send(&pattern(sent, 8000));
        received += b.receive(8000).len();
        step(&one);
        assert!(!one.to.link.has_failed());
    }
    assert!(is_noted);
}

#[test]
fn links_of_both_ends_move_at_once() {
    for seed in 0..5 {
        move_under_traffic(["192.0.2.123", "192.0.2.124"], [true, true], seed);
    }
}
