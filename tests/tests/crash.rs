//! Processes that are killed at random instants and instructions (tests/crash/). Their peers, their relatives and other connections
//! see what they see natively. `scripts/crash` tries more plans.

use std::path::{Path, PathBuf};
use std::process::Command;

use sanshim_tests::behaviour::shim_library;
use sanshim_tests::programs::Sandbox;

/// The first of the plans, and how many.
const PLANS: [&str; 2] = ["0", "100"];

fn compiled(sandbox: &Sandbox) -> PathBuf {
    let program = sandbox.file("crash");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crash");
    let sources = std::fs::read_dir(folder).expect("the program's sources");
    let sources = sources.map(|entry| entry.expect("an entry").path());
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-O1", "-pthread", "-o"]).arg(&program);
    compiler.args(sources.filter(|path| path.extension().is_some_and(|end| end == "c")));
    assert!(compiler.status().expect("the C compiler runs").success());
    program
}

/// Runs plans with these variables, and asserts that nothing went wrong.
fn check(plans: [&str; 2], variables: &[(&str, &str)]) {
    let sandbox = Sandbox::new();
    let mut command = Command::new(compiled(&sandbox));
    command.args(plans).envs(variables.iter().copied());
    let output = command.output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{variables:?}: {said}");
}

fn preload() -> String {
    shim_library().expect("the library").to_str().expect("a path in UTF-8").to_owned()
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
