//! Processes that are killed at random instants and instructions (tests/crash/). Their peers, their relatives and other connections
//! see what they see natively. `scripts/crash` tries more plans.

use sanshim_tests::plans::preload;

/// The first of the plans, and how many.
const PLANS: [&str; 2] = ["0", "100"];

fn check(plans: [&str; 2], variables: &[(&str, &str)]) {
    sanshim_tests::plans::check("crash", &plans, variables);
}

#[test]
fn killed_ones_harm_nobody_natively() {
    check(PLANS, &[]);
}

#[test]
fn killed_ones_harm_nobody_with_default_settings() {
    check(PLANS, &[("LD_PRELOAD", &preload())]);
}

#[test]
fn killed_ones_harm_nobody_over_the_san_from_the_start() {
    check(PLANS, &[("LD_PRELOAD", &preload()), ("SANSHIM_MOVE_AFTER", "0")]);
}

/// While something is the matter with the machine. The program says so where this one cannot, and does nothing.
fn check_with(what: &str, plans: &str, provider: &str) {
    let preload = preload();
    let variables = [
        ("LD_PRELOAD", preload.as_str()),
        ("SANSHIM_MOVE_AFTER", "0"),
        ("SANSHIM_PROVIDERS", provider),
        ("CRASH_WITH", what),
    ];
    check(["0", plans], &variables);
}

#[test]
fn killed_ones_harm_nobody_where_shared_memory_is_full_now_and_then() {
    check_with("no-room", "60", "shm");
}

#[test]
fn killed_ones_harm_nobody_in_a_small_memory_cgroup() {
    check_with("little-memory", "60", "shm");
}

#[test]
fn killed_ones_harm_nobody_while_clocks_jump() {
    check_with("clocks-jump", "60", "shm");
}

#[test]
fn killed_ones_harm_nobody_where_everything_stands_still() {
    check_with("stands-still", "5", "shm");
}

#[test]
fn killed_ones_harm_nobody_between_hosts() {
    check_with("between-hosts", "40", "shm-objects");
}
