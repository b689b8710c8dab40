//! What happens to connections, as one process notes it and another one reads it.

use super::super::events::EVENTS;
use super::super::follow::{Events, Follower};
use super::super::{current, Event};
use super::*;

/// Runs `body` in a fork child with a registry and a slot of its own, because a process has only one table.
fn with_slot(body: impl FnOnce(&Folder, &Registry, &'static Slot)) {
    let status = in_child(|| {
        let folder = Folder::new();
        let registry = folder.registry().expect("open");
        body(&folder, &registry, registry.allocate().expect("a slot"));
        0
    });
    assert_eq!(status, 0);
}

fn follow(folder: &Folder) -> Follower {
    let pid = std::process::id();
    let process = folder.read().processes.into_iter().find(|one| one.pid == pid);
    Follower::of(&process.expect("this process").file).expect("follow")
}

fn what(read: &Events) -> Vec<Event> {
    read.events.iter().map(|noted| noted.event).collect()
}

#[test]
fn a_life_is_told_in_order_and_only_changes_are_events() {
    with_slot(|folder, registry, slot| {
        let mut follower = follow(folder);
        current::publish(slot, &Identity { reason: Reason::Quiet, ..identity(7) });
        current::publish(slot, &Identity { reason: Reason::Quiet, ..identity(7) });
        current::note(slot, Event::Looks);
        current::publish(slot, &identity(7));
        current::set_state(slot, State::Established);
        current::set_state(slot, State::CloseWait);
        current::set_reason(slot, Reason::Detached);
        registry.release(slot);
        let read = follower.read().expect("read");
        let expected = [
            Event::Opened(Reason::Quiet),
            Event::Looks,
            Event::Reason(Reason::OnSan),
            Event::State(State::CloseWait),
            Event::Reason(Reason::Detached),
            Event::Closed,
        ];
        assert_eq!((what(&read), read.lost), (expected.to_vec(), 0));
        assert!(read.events.iter().all(|noted| (noted.connection, noted.fd) == (0, 7)));
        assert!(read.events.is_sorted_by_key(|noted| noted.time));
        assert_eq!(follower.read().expect("read"), Events::default());
    });
}

#[test]
fn what_happens_often_is_noted_only_while_somebody_follows() {
    with_slot(|folder, _registry, slot| {
        let mut follower = follow(folder);
        current::publish(slot, &identity(7));
        current::note(slot, Event::Mode(Mode::LargeReceive));
        follower.follow_for(60_000_000_000).expect("ask");
        current::note(slot, Event::Mode(Mode::SmallReceive));
        follower.follow_for(0).expect("ask");
        current::note(slot, Event::SendSwapped(1));
        let expected = vec![Event::Opened(Reason::OnSan), Event::Mode(Mode::SmallReceive)];
        assert_eq!(what(&follower.read().expect("read")), expected);
    });
}

#[test]
fn totals_keep_what_closed_connections_have_counted() {
    with_slot(|folder, registry, slot| {
        current::publish(slot, &Identity { reason: Reason::Quiet, ..identity(7) });
        publish_numbers(slot);
        current::set_reason(slot, Reason::Quiet);
        current::set_reason(slot, Reason::OnSan);
        let before = folder.only_process().totals;
        assert_eq!((before.sent.bytes, before.rdma_received, before.suspensions), (1000, 501, 25));
        assert_eq!((before.opened, before.moved), (1, 1));
        registry.release(slot);
        assert_eq!(folder.only_process().totals, before);
        let next = registry.allocate().expect("a slot");
        current::publish(next, &identity(8));
        next.sent.bytes.add(1);
        let then = folder.only_process().totals;
        assert_eq!((then.sent.bytes, then.opened, then.moved), (1001, 2, 2));
    });
}

#[test]
fn a_slow_reader_loses_the_oldest_and_is_told_so() {
    with_slot(|folder, _registry, slot| {
        let (mut behind, mut later) = (follow(folder), follow(folder));
        current::note(slot, Event::Offered);
        later.pass_over().expect("read");
        for byte in 1..=EVENTS as u64 + 10 {
            current::note(slot, Event::SendingTurned(byte));
        }
        for (follower, lost) in [(&mut behind, 11), (&mut later, 10)] {
            let read = follower.read().expect("read");
            assert_eq!((read.events.len(), read.lost), (EVENTS, lost));
            assert_eq!(read.events[0].event, Event::SendingTurned(11));
        }
    });
}

#[test]
fn nonsense_in_the_ring_is_counted_as_lost() {
    with_slot(|folder, _registry, slot| {
        current::note(slot, Event::Offered);
        let at = super::super::layout::EVENTS_AT as u64 + 16;
        let file = fs::OpenOptions::new().write(true).open(folder.file()).expect("the file");
        std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 8], at).expect("write");
        assert_eq!(follow(folder).read().expect("read"), Events { events: vec![], lost: 1 });
    });
}

#[test]
fn a_fork_child_begins_with_none() {
    with_slot(|folder, registry, slot| {
        current::publish(slot, &identity(7));
        let _ = registry;
        let status = in_child(|| {
            // The child of a child: its own file at the same address.
            let mut registry = folder.registry().expect("open");
            registry.before_fork();
            let slot = registry.allocate().expect("a slot");
            current::publish(slot, &identity(8));
            in_child(|| {
                registry.after_fork_in_child().expect("a file");
                current::note(slot, Event::Looks);
                let read = follow(folder).read().expect("read");
                i32::from(what(&read) != [Event::Looks])
            })
        });
        assert_eq!(status, 0);
    });
}
