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
        let sources =
            ["between.c", "common.c", "forks.c", "handing.c"].map(|name| folder.join(name));
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
    command.env("SANSHIM_PROVIDERS", "shm-objects").env("SANSHIM_MOVE_AFTER", "0");
    command.env("SANSHIM_LOG", "info").env("SANSHIM_LOG_FILE", sandbox.log());
    let ended = command.output().expect("the program");
    let log = std::fs::read_to_string(sandbox.log()).unwrap_or_default();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}{wrong}{log}");
    log
}

/// True if a connection is on TCP that was on the SAN, or does not come there.
fn is_back(log: &str) -> bool {
    const BEFORE: [&str; 3] = ["reason=quiet", "reason=shared", "reason=peer-native"];
    let is_back = |line: &str| {
        line.contains("provider=tcp") && !BEFORE.iter().any(|reason| line.contains(reason))
    };
    log.lines().any(is_back)
}

/// Runs cases with every connection on the fabric, to its end; what the log says. Where an end got no processor in time
/// a connection stays on TCP, as it should: then once more.
fn run_on_fabric(address: &str, cases: &[&str]) -> String {
    let on_fabric = |log: &str| log.contains("provider=shm") && !is_back(log);
    for attempt in 1..=3 {
        let log = run(Mode::Shim, address, cases);
        if on_fabric(&log) {
            return log;
        }
        eprintln!("attempt {attempt}: a connection was on TCP\n{log}");
    }
    panic!("every time a connection was on TCP");
}

#[test]
fn the_cases_natively() {
    run(Mode::Native, "127.0.0.1", &[]);
}

#[test]
fn the_cases_over_the_fabric() {
    run_on_fabric("127.0.0.1", &[]);
}

#[test]
fn the_cases_over_the_fabric_by_ipv6() {
    run_on_fabric("::1", &[]);
}

#[test]
fn control_goes_to_who_uses_a_connection() {
    let cases = ["heir", "prefork", "orphan", "lent", "turns", "quits"];
    let log = run_on_fabric("127.0.0.1", &cases);
    assert!(log.matches("this process has control").count() >= 6, "{log}");
}

/// What goes to a program without the library goes on over TCP.
#[test]
fn a_program_without_the_library_goes_on_over_tcp() {
    let cases = ["handed", "passed", "computes"];
    run(Mode::Native, "127.0.0.1", &cases);
    for attempt in 1..=3 {
        let log = run(Mode::Shim, "127.0.0.1", &cases);
        let returned = log.matches("provider=tcp reason=handed-over").count();
        if log.matches("provider=shm").count() == 2 * cases.len() && returned >= cases.len() {
            return;
        }
        eprintln!("attempt {attempt}: a connection was on TCP before\n{log}");
    }
    panic!("every time a connection was on TCP before");
}
