//! `scripts/soak` finds what alters a byte, and what keeps a descriptor for each connection. Each takes a minute and a half: the
//! nightly workflow runs them.

use sanshim_tests::plans::preload;
use sanshim_tests::programs::locate;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What `scripts/soak` says of redis with a library of this definition beside the shim; it must fail.
fn said_of(definition: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let wrong = folder.path().join("libwrong.so");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let built = Command::new(compiler)
        .args(["-shared", "-fPIC", "-w", definition, "-o"])
        .arg(&wrong)
        .arg(root().join("tests/programs/wrong.c"))
        .status()
        .expect("a C compiler");
    assert!(built.success());
    let output = Command::new(root().join("scripts/soak"))
        .args(["--minutes", "1", "--seed", "1", "--only", "redis", "--beside"])
        .arg(&wrong)
        .arg("--keep")
        .arg(folder.path().join("kept"))
        .env("SANSHIM_LIBRARY", preload())
        .env("SANCTL", locate::sanctl())
        .output()
        .expect("scripts/soak");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    errors
}

#[test]
#[ignore = "a minute and a half: the soak workflow runs it"]
fn a_byte_that_is_altered_is_found() {
    let errors = said_of("-DALTERS");
    assert!(errors.contains("wrong: ") && errors.contains("--seed 1"), "{errors}");
}

#[test]
#[ignore = "a minute and a half: the soak workflow runs it"]
fn descriptors_that_are_kept_are_found() {
    let errors = said_of("-DKEEPS");
    assert!(errors.contains("redis: descriptors was"), "{errors}");
}
