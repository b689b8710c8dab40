//! Random streams that slow down, pause, fork and execute, and then end in every way (tests/ends/ends.c). The program knows
//! each byte. It must see the same natively and under the library.
//!
//! To try more plans: compile tests/ends/ends.c, and run `ends FIRST COUNT` under the library, or `ends FIRST COUNT unread`, or
//! `ends FIRST COUNT unkilled`.

use sanshim_tests::plans::preload;

/// The first of the plans, and how many.
const PLANS: [&str; 2] = ["0", "120"];
/// A connector entered the SAN alone, and its peer ended its direction on TCP.
const HALF_CLOSED_ON_TCP: [&str; 2] = ["8268", "1"];

/// Ends that execute programs at about the same time, or where the other closes or is killed; and a reader that sleeps in
/// epoll_wait when the last of what lies in the segment is read.
const EXECUTING: [&str; 10] =
    ["621", "1789", "4091", "6319", "7073", "7478", "7653", "7725", "9483", "9966"];

/// The same plans, but an end ends with something unread.
const UNREAD: [&str; 3] = ["0", "80", "unread"];

/// The same plans, but no end is killed: a link loses what a killed process had not delivered.
const UNKILLED: [&str; 3] = ["0", "120", "unkilled"];

/// Ends that execute a program and so close a connection over a link.
const CLOSED_BY_EXEC: [&str; 3] = ["165", "618", "645"];

/// Ends that go on in a fork child, whose parent closes its descriptor, and whose peer ends before it has come to the link.
const LEFT_TO_CHILD: [&str; 2] = ["90", "440"];

/// A fork child ends the connection while its parent, which has the link, closes its own descriptor.
const ENDED_BY_CHILD: [&str; 3] = ["32", "1", "unkilled"];

fn check(plans: &[&str], variables: &[(&str, &str)]) {
    sanshim_tests::plans::check("ends", plans, variables);
}

#[test]
fn each_byte_comes_natively() {
    check(&PLANS, &[]);
}

#[test]
fn each_byte_comes_with_default_settings() {
    check(&PLANS, &[("LD_PRELOAD", &preload())]);
}

#[test]
fn each_byte_comes_over_the_san_from_the_start() {
    check(&PLANS, &[("LD_PRELOAD", &preload()), ("SANSHIM_MOVE_AFTER", "0")]);
}

#[test]
fn what_was_sent_before_a_reset_comes() {
    check(&UNREAD, &[]);
    check(&UNREAD, &[("LD_PRELOAD", &preload())]);
    check(&UNREAD, &[("LD_PRELOAD", &preload()), ("SANSHIM_MOVE_AFTER", "0")]);
}

#[test]
fn what_follows_a_half_close_on_tcp_comes() {
    for _ in 0..10 {
        check(&HALF_CLOSED_ON_TCP, &[("LD_PRELOAD", &preload())]);
    }
}

#[test]
fn what_ends_that_execute_had_not_read_comes() {
    for seed in EXECUTING {
        for _ in 0..3 {
            check(&[seed, "1"], &[("LD_PRELOAD", &preload())]);
            check(&[seed, "1"], &[("LD_PRELOAD", &preload()), ("SANSHIM_MOVE_AFTER", "0")]);
        }
    }
}

/// Connections as between hosts, over the objects of shared memory.
#[test]
fn each_byte_comes_over_a_link() {
    let library = preload();
    let over_a_link = [("LD_PRELOAD", library.as_str()), ("SANSHIM_PROVIDERS", "shm-objects")];
    let from_the_start = [over_a_link[0], over_a_link[1], ("SANSHIM_MOVE_AFTER", "0")];
    check(&UNKILLED, &over_a_link);
    check(&UNKILLED, &from_the_start);
    for seed in CLOSED_BY_EXEC {
        check(&[seed, "1", "unkilled"], &over_a_link);
    }
    for seed in LEFT_TO_CHILD.into_iter().cycle().take(6) {
        check(&[seed, "1", "unread"], &over_a_link);
    }
    for _ in 0..10 {
        check(&ENDED_BY_CHILD, &from_the_start);
    }
}
