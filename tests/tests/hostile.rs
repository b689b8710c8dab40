//! Peers that write anything into the memory of their connections (tests/hostile/). The process at the other ends crashes and hangs
//! never, its other connections are right, and it does no more than they need. `scripts/hostile` tries more plans.

use sanshim_tests::plans::preload;

/// The first of the plans, and how many.
const PLANS: [&str; 2] = ["0", "100"];
/// Of those in which nobody writes: they check the program.
const FEW_PLANS: [&str; 2] = ["0", "30"];

fn check(plans: [&str; 2], variables: &[(&str, &str)]) {
    sanshim_tests::plans::check("hostile", &plans, variables);
}

#[test]
fn each_byte_is_right_natively() {
    check(FEW_PLANS, &[]);
}

#[test]
fn each_byte_is_right_where_nobody_writes() {
    check(FEW_PLANS, &[("LD_PRELOAD", &preload()), ("HOSTILE_STILL", "1")]);
}

#[test]
fn whatever_peers_write_others_go_on_with_default_settings() {
    check(PLANS, &[("LD_PRELOAD", &preload())]);
}

#[test]
fn whatever_peers_write_others_go_on_over_the_san_from_the_start() {
    check(PLANS, &[("LD_PRELOAD", &preload()), ("SANSHIM_MOVE_AFTER", "0")]);
}
