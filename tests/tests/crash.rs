//! Processes that are killed at random instants and instructions (tests/crash/). Their peers, their relatives and other connections
//! see what they see natively. `scripts/crash` tries more plans.

use sanshim_tests::plans::preload;

/// The first of the plans, and how many.
const PLANS: [&str; 2] = ["0", "100"];

fn check(plans: [&str; 2], variables: &[(&str, &str)]) {
    sanshim_tests::plans::check("crash", plans, variables);
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
