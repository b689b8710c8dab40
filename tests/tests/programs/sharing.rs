//! Programs that hand their connections to others: socat, sshd, Python, nginx's upgrade is beside
//! nginx's other cases.

use crate::python::{client, script};
use crate::{both, ECHOED_PER_CONNECTION};
use sanshim_tests::programs::{locate, port, status, Mode, Running, Sandbox};
use serde_json::json;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::process::Command;

const CONNECTIONS: usize = 4;

/// An inetd-like server: a process for each connection, which becomes `cat` or carries bytes to it.
fn socat(mode: Mode, action: &str, expect: impl FnOnce(&Running)) {
    let sandbox = Sandbox::new();
    let number = port::reserve();
    let listen = format!("TCP-LISTEN:{number},bind=127.0.0.1,fork,reuseaddr");
    let mut server = sandbox.start(mode, "socat", [listen.as_str(), action]);
    port::wait_listening(number, &mut server);
    let (number, count) = (number.to_string(), CONNECTIONS.to_string());
    let more = [number.as_str(), count.as_str(), "127.0.0.1"];
    let mut client = client("blocking").start(mode, &sandbox, &more);
    client.wait_for_line("hold");
    expect(&client);
    client.write("go on\n");
    let total = CONNECTIONS * ECHOED_PER_CONNECTION;
    assert_eq!(client.finish().trim_end(), format!("hold\nok {total}"));
    drop(server);
}

/// A connection that another program inherits before it was busy stays on TCP.
fn socat_becomes(mode: Mode) {
    socat(mode, "EXEC:cat,nofork", |client| {
        if mode == Mode::Shim {
            status::expect_peer_that_stays(client, CONNECTIONS);
        }
    });
}

fn socat_carries(mode: Mode) {
    socat(mode, "EXEC:cat", |client| mode.expect_shm(client, CONNECTIONS));
}

/// The process that accepts passes each connection to another by SCM_RIGHTS, once it is on the SAN: it goes back to TCP.
fn passing(mode: Mode, way: &str) {
    let sandbox = Sandbox::new();
    let server = script("passing_server.py", &[way]).start(mode, &sandbox, &[]);
    let port = server.wait_for_line("port ");
    let more = [port.as_str(), &CONNECTIONS.to_string(), "127.0.0.1"];
    let mut client = client("epoll").start(mode, &sandbox, &more);
    client.wait_for_line("hold");
    client.write("go on\n");
    let total = CONNECTIONS * ECHOED_PER_CONNECTION;
    assert_eq!(client.finish().trim_end(), format!("hold\nok {total}"));
    server.terminate();
}

fn passing_to_workers(mode: Mode) {
    passing(mode, "workers");
}

/// To a new process each, which the fork server makes.
fn passing_to_fork_server(mode: Mode) {
    passing(mode, "forkserver");
}

/// Two processes send on one connection in turns (D2): sanctl shows who is in control.
fn turns(mode: Mode) {
    const TURNS: u64 = 10;
    let sandbox = Sandbox::new();
    let mut program = script("turns.py", &[]).start(mode, &sandbox, &[]);
    let last: u64 = program.wait_for_line("took ").parse().expect("a process id");
    if mode == Mode::Shim {
        let entries = status::entries(&status::family(program.pid()));
        assert_eq!(entries.len(), 4, "{entries:#?}");
        // The child has the first turn that is a swap.
        let control = json!({ "controller": last, "swaps": 2 * TURNS - 1, "waiters": 0 });
        let shared: Vec<_> =
            entries.iter().filter(|(_, e)| e["control"]["send"] == control).collect();
        assert_eq!(shared.len(), 2, "{entries:#?}");
    }
    program.write("");
    program.terminate();
}

/// The same with sessions that are suspended for each turn (D4).
fn turns_suspended(mode: Mode) {
    let sandbox = Sandbox::new();
    fs::write(sandbox.file("rules.toml"), "[shm]\nswap = \"suspend\"\n").expect("the rules");
    let rules = format!("SANSHIM_CONFIG={}", sandbox.file("rules.toml").display());
    let helper = locate::helper("turns.py");
    let helper = helper.to_str().expect("a path in UTF-8");
    let mut program =
        sandbox.start(mode, "env", [&rules, locate::python(), "-u", helper, "reading"]);
    program.wait_for_line("took ");
    let suspensions = |entry: &serde_json::Value| entry["control"]["suspensions"].as_u64();
    for round in 0.. {
        let entries = status::entries(&status::family(program.pid()));
        if mode == Mode::Native || entries.iter().any(|(_, e)| suspensions(e) > Some(0)) {
            break;
        }
        // A peer that gets no processor for a while is not waited for.
        assert!(round < 50, "never suspended: {entries:#?}");
        program.write("again\n");
        program.wait_for_line("took ");
    }
    program.write("");
    program.terminate();
}

/// scp of 100 MB each way: sshd forks and executes itself for the connection.
fn secure_copy(mode: Mode) {
    const SIZE: usize = 100_000_000;
    let sandbox = Sandbox::new();
    let path = |name: &str| sandbox.file(name).to_str().expect("a path in UTF-8").to_owned();
    for name in ["host", "key"] {
        let made = ["-q", "-t", "ed25519", "-N", "", "-f", name];
        sandbox.run(Mode::Native, "ssh-keygen", made);
    }
    // sshd wants its folder, which only its service makes; another user's sshd needs none.
    let _ = fs::DirBuilder::new().mode(0o755).create("/run/sshd");
    let settings = format!(
        "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n\
         PidFile none\nSubsystem sftp internal-sftp\nListenAddress 127.0.0.1\n",
        path("host"),
        path("key.pub"),
    );
    fs::write(sandbox.file("settings"), settings).expect("the settings");
    let content: Vec<u8> = (0..SIZE as u64).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    fs::write(sandbox.file("content"), &content).expect("the file");
    let number = port::reserve();
    let sshd = locate::program("sshd");
    let sshd = sshd.to_str().expect("a path in UTF-8");
    let arguments = ["-D", "-e", "-f", &path("settings"), "-p", &number.to_string()];
    let mut server = sandbox.start(mode, sshd, arguments);
    port::wait_listening(number, &mut server);
    let user = Command::new("id").arg("-un").output().expect("id runs").stdout;
    let user = String::from_utf8(user).expect("a name in UTF-8");
    let remote = |name: &str| format!("{}@127.0.0.1:{}", user.trim(), path(name));
    for (from, to) in [(path("content"), remote("there")), (remote("there"), path("back"))] {
        let port = number.to_string();
        // The cheapest cipher: it is not what is tested.
        let options = ["-q", "-c", "aes128-gcm@openssh.com", "-P", &port, "-i", "key", "-o"];
        let trust = ["StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", &from, &to];
        sandbox.run(mode, "scp", options.iter().chain(&trust).copied());
    }
    for name in ["there", "back"] {
        assert!(fs::read(sandbox.file(name)).expect("the copy") == content, "{name} differs");
    }
    drop(server);
    if mode == Mode::Shim {
        carried(&fs::read_to_string(sandbox.log()).expect("the shim's log"));
    }
}

/// Both copies went over TCP: sshd executes itself with a connection that was not busy before, and forbids itself what
/// the shim needs.
fn carried(log: &str) {
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("provider=tcp reason=peer-native role=connector"), 2, "{log}");
    assert_eq!(count("provider=shm"), 0, "{log}");
}

both! {
    socat_becomes: socat_becomes_cat_native, socat_becomes_cat_shim;
    socat_carries: socat_carries_cat_native, socat_carries_cat_shim;
    passing_to_workers: python_passing_native, python_passing_shim;
    passing_to_fork_server: python_forkserver_native, python_forkserver_shim;
    turns: turns_native, turns_shim;
    turns_suspended: turns_suspended_native, turns_suspended_shim;
    secure_copy: secure_copy_native, secure_copy_shim;
}
