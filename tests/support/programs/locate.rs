//! Where the programs under test, `sanctl`, and the helper programs are.

use std::env;
use std::path::{Path, PathBuf};

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

/// `sanctl`: `$SANCTL`, or the one built beside this test.
pub fn sanctl() -> PathBuf {
    built("SANCTL", "sanctl")
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
