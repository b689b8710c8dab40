//! `scripts/differ` finds a library that loses bytes and one that says something else than TCP, and finds nothing
//! where nothing is wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Programs that show both.
const SEEDS: &str = "1-12";
const DIFFERS: i32 = 1;
const BYTES: i32 = 3;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn compile(sources: &[PathBuf], output: &Path, arguments: &[&str]) {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let said = Command::new(compiler)
        .args(arguments)
        .arg("-o")
        .arg(output)
        .args(sources)
        .output()
        .expect("a C compiler");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

/// What `scripts/differ` says of a library that is built with this definition.
fn tried(definition: &str) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let actor = folder.path().join("actor");
    let sources = std::fs::read_dir(root().join("tests/differ")).expect("the actor's sources");
    let sources: Vec<_> = sources
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "c"))
        .collect();
    compile(&sources, &actor, &["-O1", "-pthread"]);
    let library = folder.path().join("libwrong.so");
    compile(
        &[root().join("tests/programs/wrong.c")],
        &library,
        &["-shared", "-fPIC", "-w", definition],
    );
    Command::new("python3")
        .arg(root().join("scripts/differing"))
        .args(["--seeds", SEEDS, "--mode", "default", "--jobs", "2", "--whole", "--library"])
        .arg(&library)
        .env("DIFFER_ACTOR", &actor)
        .env("SANSHIM_ROOT", root())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3")
}

fn assert_ends(definition: &str, status: i32, words: &str) {
    let output = tried(definition);
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}\n{errors}");
    assert!(said.contains(words), "{said}\n{errors}");
}

#[test]
fn a_library_that_loses_bytes_is_found() {
    assert_ends("-DLOSES", BYTES, "BYTES");
}

#[test]
fn a_library_that_says_something_else_is_found() {
    assert_ends("-DLIES", DIFFERS, "under the library: ECONNRESET");
}

#[test]
fn a_library_that_changes_nothing_is_found_right() {
    assert_ends("-DNOTHING", 0, "");
}
