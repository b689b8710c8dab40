//! When a connection goes to the SAN, and when it comes back.

use super::*;

/// What the looks find that so many exchanges make due, with a pause (ticks) before each send.
fn exchanges(traffic: &Traffic, clock: &mut u64, count: u32, pause: u64) -> Vec<Look> {
    let mut looks = Vec::new();
    for _ in 0..count {
        for (way, ticks) in [(Way::Send, pause), (Way::Receive, 100_000)] {
            LAST_TRANSFER.0.store(*clock, Relaxed);
            *clock += ticks;
            if traffic.count_at(*clock, way, 1) {
                // As if a tick were a third of a nanosecond.
                looks.push(traffic.look_at(*clock / 3));
            }
        }
    }
    looks
}

fn traffic() -> Traffic {
    initialize(2 * WINDOW);
    Traffic::new()
}

fn begun() -> (Traffic, u64) {
    let traffic = traffic();
    traffic.begin();
    (traffic, 1)
}

// One test, for the clock of the last transfer is the process's.
#[test]
fn who_sends_without_pausing_is_busy_and_who_pauses_is_not() {
    let (traffic, mut clock) = begun();
    let mut looks = |count, pause| exchanges(&traffic, &mut clock, count, pause);
    assert_eq!(looks(1, 1), []);
    assert_eq!(looks(1, 1), [Look::Quiet], "it is no short one");
    assert_eq!(looks(16, LONGEST_PAUSE), [Look::Quiet, Look::Busy]);
    assert_eq!(looks(16, LONGEST_PAUSE + 1), [Look::Quiet; 2]);
    assert_eq!(looks(16, LONGEST_PAUSE), [Look::Quiet, Look::Busy]);
    assert_eq!(looks(8, 3 * LONGEST_WINDOW / 8), [Look::Quiet]);

    let (traffic, mut clock) = begun();
    exchanges(&traffic, &mut clock, 10, 1);
    let mut before = 0;
    for _ in 0..5 {
        let mut windows = 1;
        while exchanges(&traffic, &mut clock, WINDOW / 2, 1) != [Look::Busy] {
            windows += 1;
        }
        traffic.failed(false);
        assert!(windows > before, "attempts that fail get rarer: {windows}");
        before = windows;
    }

    let (traffic, mut clock) = begun();
    let mut busy_windows = || {
        let mut windows = 1;
        while exchanges(&traffic, &mut clock, WINDOW / 2, 1) != [Look::Busy] {
            windows += 1;
            clock += LEAST_STAY;
        }
        traffic.returned_at(clock / 3);
        windows
    };
    assert_eq!(busy_windows(), 3, "the first look, and two windows");
    assert_eq!(busy_windows(), 4, "who came back must be busy for longer");
    assert_eq!(busy_windows(), 8);
    traffic.looked_at.store(1, Relaxed);
    traffic.returned_at(clock / 3 + PAID_FOR);
    clock += 3 * (PAID_FOR + LEAST_STAY);
    let looks = exchanges(&traffic, &mut clock, 2 * WINDOW, 1);
    assert!(looks.contains(&Look::Busy), "it has paid: {looks:?}");

    let (traffic, mut clock) = begun();
    traffic.returned_at(clock / 3);
    assert!(!exchanges(&traffic, &mut clock, 64, 1).contains(&Look::Busy), "it came back just now");
    clock += 3 * LEAST_STAY;
    assert!(exchanges(&traffic, &mut clock, 64, 1).contains(&Look::Busy));
}

#[test]
fn much_data_is_busy_however_few_the_transfers() {
    let (traffic, mut clock) = begun();
    let mut looks = Vec::new();
    for _ in 0..4 {
        clock += MANY_BYTES * NS_FOR_A_BYTE;
        if traffic.count(Way::Receive, MANY_BYTES as usize) {
            looks.push(traffic.look_at(clock));
        }
    }
    assert_eq!(looks, [Look::Quiet, Look::Quiet, Look::Busy, Look::Busy]);
}

#[test]
fn a_peer_on_another_host_is_looked_for_eight_times() {
    let traffic = traffic();
    for _ in 0..2 {
        traffic.begin();
        let over = [(); 8].map(|()| traffic.failed_elsewhere());
        assert_eq!(over, [false, false, false, false, false, false, false, true]);
    }
}

#[test]
fn who_wakes_somebody_with_each_message_is_better_off_on_tcp() {
    let traffic = traffic();
    let woken = |messages: u32, bytes: u64| {
        (1..=DOORBELLS_TO_JUDGE)
            .any(|n| traffic.count_doorbells(1, n * messages, u64::from(n) * bytes))
    };
    assert!(woken(1, 100));
    traffic.entered();
    assert!(!woken(3, 100));
    traffic.entered();
    assert!(!woken(0, BYTES_FOR_A_DOORBELL));
}
