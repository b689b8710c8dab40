//! What connections between hosts use, between the processes of this host: over the objects of shared memory instead of
//! RDMA devices, with the programs of tests/between.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use sanshim_tests::programs::{Mode, Sandbox};

/// The program, built once.
fn between() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("between");
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("between");
        let sources = ["between.c", "common.c", "forks.c"].map(|name| folder.join(name));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let built = Command::new(compiler)
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&program)
            .args(sources)
            .status();
        assert!(built.expect("a C compiler").success(), "tests/between does not compile");
        program
    })
}

/// Runs cases; what the log says under the shim.
fn run(mode: Mode, address: &str, cases: &[&str]) -> String {
    let sandbox = Sandbox::new();
    let mut command = mode.command(between());
    command.arg(address).args(cases);
    command.env("SANSHIM_PROVIDERS", "shm-objects");
    command.env("SANSHIM_LOG", "info").env("SANSHIM_LOG_FILE", sandbox.log());
    let ended = command.output().expect("the program");
    let log = std::fs::read_to_string(sandbox.log()).unwrap_or_default();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}{wrong}{log}");
    log
}

/// Every connection was on the fabric, to its end.
fn assert_on_fabric(log: &str) {
    assert!(log.contains("provider=shm") && !log.contains("provider=tcp"), "{log}");
}

#[test]
fn the_cases_natively() {
    run(Mode::Native, "127.0.0.1", &[]);
}

#[test]
fn the_cases_over_the_fabric() {
    assert_on_fabric(&run(Mode::Shim, "127.0.0.1", &[]));
}

#[test]
fn the_cases_over_the_fabric_by_ipv6() {
    assert_on_fabric(&run(Mode::Shim, "::1", &[]));
}

#[test]
fn control_goes_to_who_uses_a_connection() {
    let log = run(Mode::Shim, "127.0.0.1", &["heir", "prefork", "orphan", "lent", "turns"]);
    assert_on_fabric(&log);
    assert!(log.matches("this process has control").count() >= 6, "{log}");
}
