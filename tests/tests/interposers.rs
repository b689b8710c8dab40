//! Other preloaded libraries, before and behind this one: each finds what it stands before, and the connection is on the SAN
//! whichever way the program's calls come.

use std::path::PathBuf;
use std::process::Command;

use sanshim_tests::behaviour::shim_library;
use sanshim_tests::programs::status::connections;
use sanshim_tests::programs::{locate, Mode, Sandbox};

/// Python's own sends after the connection was warmed up.
const SENDS: u32 = 100;

/// tests/programs/interposer.c, compiled with these definitions.
fn interposer(sandbox: &Sandbox, definitions: &[&str]) -> PathBuf {
    let library = sandbox.file("interposer.so");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-O1", "-shared", "-fPIC"]).args(definitions);
    compiler.arg(locate::helper("interposer.c")).arg("-o").arg(&library);
    assert!(compiler.status().expect("the C compiler runs").success());
    library
}

/// Runs tests/programs/interposed.py with these libraries; gives how often the interposer was called, and the providers of
/// the connection's ends.
fn run(sandbox: &Sandbox, preloaded: &[&PathBuf], arguments: &[&str]) -> (u32, Vec<String>) {
    let mut command = Mode::Native.command(locate::python());
    command.arg("-u").arg(locate::helper("interposed.py")).args(arguments);
    let names: Vec<_> = preloaded.iter().map(|path| path.to_str().expect("UTF-8")).collect();
    command.current_dir(sandbox.path()).env("LD_PRELOAD", names.join(" "));
    let program = sandbox.launch("interposed", command);
    let calls = program.wait_for_line("ok ").parse().expect("a number");
    let providers = connections(&[program.pid()]).into_iter().map(|end| end.provider).collect();
    program.finish();
    (calls, providers)
}

/// The library of the other kind alone, before this one, and behind it, with Python's calls and with looked up ones.
fn check(definitions: &[&str], goes_before: bool) {
    let own = shim_library().expect("the library");
    let sandbox = Sandbox::new();
    let other = interposer(&sandbox, definitions);
    let (calls, providers) = run(&sandbox, &[&other], &["libc"]);
    assert!(calls >= SENDS, "{definitions:?}: {calls}");
    assert!(providers.is_empty());
    for arguments in [&[] as &[&str], &["libc"]] {
        let context = format!("{definitions:?}, {arguments:?}");
        if goes_before {
            // Each call of Python's comes to the other library, and then here.
            let (calls, providers) = run(&sandbox, &[&other, &own], arguments);
            assert!(calls >= SENDS, "{context}: {calls}");
            assert_eq!(providers, ["shm", "shm"], "{context}");
        }
        // What goes over the SAN never gets to the other library. What is looked up in libc passes by both.
        let (calls, providers) = run(&sandbox, &[&own, &other], arguments);
        let wanted = if arguments.is_empty() { "shm" } else { "tcp" };
        assert_eq!(calls < SENDS, arguments.is_empty(), "{context}: {calls}");
        assert_eq!(providers, [wanted; 2], "{context}");
    }
}

#[test]
fn one_that_asks_for_what_comes_next() {
    check(&[], true);
    check(&["-DHOOKS_DLSYM"], true);
}

#[test]
fn one_that_asks_libc() {
    check(&["-DBY_LIBC"], true);
    // Before this one it would ask past it, which docs/limitations.md says.
    check(&["-DBY_LIBC", "-DHOOKS_DLSYM"], false);
}

#[test]
fn one_that_makes_the_call_by_number() {
    check(&["-DBY_NUMBER"], true);
}
