//! What the documents say of the code is so: the scripts that write it would change nothing.

use std::path::Path;
use std::process::Command;

fn would_change_nothing(script: &str) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
    let output = Command::new(scripts.join(script)).arg("--check").output().expect("the script");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_requirement_is_in_the_code_and_in_a_test() {
    would_change_nothing("requirements");
}

#[test]
fn no_import_of_the_switch_runs_up_and_no_circle_leaves_its_room() {
    would_change_nothing("structure");
}
