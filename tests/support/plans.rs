//! C programs that carry out random plans by number, and say what went wrong: compiled, and run with some variables.

use crate::behaviour::shim_library;
use crate::programs::Sandbox;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What all of them have in common.
const SHARED: &str = "plans";

/// Runs plans of the program in this folder of tests/: from the first number on, so many, and perhaps of a kind. Asserts that
/// nothing went wrong.
pub fn check(folder: &str, plans: &[&str], variables: &[(&str, &str)]) {
    let sandbox = Sandbox::new();
    let mut command = Command::new(compiled(folder, &sandbox));
    command.args(plans).envs(variables.iter().copied());
    let output = command.output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{variables:?}: {said}");
}

/// The program of this folder of tests/.
pub fn compiled(folder: &str, sandbox: &Sandbox) -> PathBuf {
    let program = sandbox.file(folder);
    let sources = [folder, SHARED].into_iter().flat_map(|folder| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let sources = std::fs::read_dir(folder).expect("the program's sources");
        sources.map(|entry| entry.expect("an entry").path())
    });
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-O1", "-pthread", "-rdynamic", "-o"]).arg(&program);
    compiler.args(sources.filter(|path| path.extension().is_some_and(|end| end == "c")));
    assert!(compiler.status().expect("the C compiler runs").success());
    program
}

/// LD_PRELOAD for the library.
pub fn preload() -> String {
    shim_library().expect("the library").to_str().expect("a path in UTF-8").to_owned()
}
