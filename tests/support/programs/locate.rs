//! Where the programs under test, `sanctl`, and the helper programs are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Debian keeps daemons here, and an ordinary user's `PATH` does not.
const SYSTEM_FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// The path of an installed program.
///
/// # Panics
/// When it is not installed: the message names the remedy.
pub fn program(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(env::split_paths(SYSTEM_FOLDERS))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("'{name}' is not installed: run scripts/install"))
}

/// The Python interpreter itself: the `python3` of a version manager may be a script that starts another.
pub fn python() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let mut command = Command::new(program("python3"));
        let output = command.args(["-c", "import sys; print(sys.executable)"]).output();
        let output = output.expect("python3 runs");
        String::from_utf8(output.stdout).expect("a path in UTF-8").trim().to_owned()
    })
}

/// `sanctl`: `$SANCTL`, or the one built beside this test.
pub fn sanctl() -> PathBuf {
    built("SANCTL", "sanctl")
}

/// Copies a program that is executed afterwards. Another process writes the copy: a child that
/// another thread starts meanwhile would keep this process's descriptor of it for a moment, and
/// nothing executes a file that somebody writes.
///
/// # Panics
/// When it cannot.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().expect("cp runs").success());
}

/// A file of `tests/programs`.
pub fn helper(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

fn built(variable: &str, name: &str) -> PathBuf {
    if let Some(path) = env::var_os(variable) {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "{variable} names {}, which is not a file", path.display());
        return path;
    }
    // The test is <target>/<profile>/deps/NAME-HASH, what it needs is two folders up.
    let test = env::current_exe().expect("the path of this test");
    let beside = test.ancestors().nth(2).map(|folder| folder.join(name));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| {
        panic!("no {name} beside {}: build the workspace or set {variable}", test.display())
    })
}
