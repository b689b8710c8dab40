//! `sanctl status` over what this test process publishes, and over what no process would.

mod publishing;

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use publishing::{no_other_child, pipe, with_publishing_child};
use sanshim_core::reason::Reason;
use sanshim_core::registry::{self, count_return, Identity, Provider, Registry, State};
use sanshim_core::session::Mode;
use serde_json::{json, Value};

fn sanctl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sanctl"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn run(arguments: &[&str]) -> Output {
    sanctl(arguments).output().expect("sanctl runs")
}

/// A folder that is removed at the end of a test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("sanctl-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("mkdir");
        Folder(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Publishes two connections; the registry is not removed, as if the process were killed.
fn publish() {
    let registry = Registry::open(b"some-server").expect("a registry");
    let slot = registry.allocate().expect("a slot");
    registry::publish(
        slot,
        &Identity {
            fd: 9,
            local: SocketAddr::from(([127, 0, 0, 1], 6379)),
            peer: SocketAddr::from(([127, 0, 0, 1], 40000)),
            provider: Provider::Shm,
            reason: Reason::OnSan,
            state: State::Established,
        },
    );
    slot.sent.bytes.add(5000);
    slot.sent.messages.add(5);
    slot.received.bytes.add(6000);
    slot.received.messages.add(6);
    slot.credits.set(14);
    slot.wakeups_sent.add(1);
    slot.wakeups_avoided.add(2);
    slot.wakeups_received.add(3);
    slot.credit_updates_sent.add(4);
    slot.buffered_bytes.set(100);
    slot.transfers.sent.add(4000);
    slot.transfers.received.add(3000);
    slot.transfers.mode.set(Mode::LargeReceive as u64);
    for (gauge, seen) in slot.transfers.behaviours.iter().zip([9, 8, 7]) {
        gauge.set(seen);
    }
    slot.transfers.threshold.set(2048);
    slot.transfers.message_size.set(1536);
    slot.transfers.send_buffer.set(1 << 20);
    slot.transfers.fragmented.add(10);
    slot.transfers.resizes.set(11);
    slot.transfers.scans.set(12);
    slot.transfers.advertisements_used.set(13);
    slot.transfers.advertisements_dropped.set(14);
    for reason in [Reason::Detached, Reason::PeerReturned, Reason::Detached] {
        count_return(reason);
    }
    let slot = registry.allocate().expect("a slot");
    registry::publish(
        slot,
        &Identity {
            fd: 8,
            local: SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 6379),
            peer: SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 40001),
            provider: Provider::Tcp,
            reason: Reason::PeerNative,
            state: State::CloseWait,
        },
    );
}

/// What the JSON says of the connection that [`publish`] has on TCP.
fn on_tcp() -> Value {
    json!({
        "fd": 8,
        "local": "[::1]:6379",
        "peer": "[::1]:40001",
        "provider": "tcp",
        "reason": "peer-native",
        "state": "close-wait",
        "sent": { "bytes": 0, "messages": 0 },
        "received": { "bytes": 0, "messages": 0 },
        "credits": 0,
        "credit_updates_sent": 0,
        "buffered_bytes": 0,
        "wakeups": { "sent": 0, "avoided": 0, "received": 0 },
        "control": {
            "send": { "controller": null, "swaps": 0, "waiters": 0 },
            "receive": { "controller": null, "swaps": 0, "waiters": 0 },
            "suspensions": 0,
            "suspended_microseconds": 0,
        },
        "rdma": {
            "mode": "discovery",
            "threshold": null,
            "sent_bytes": 0,
            "received_bytes": 0,
            "behaviours": {
                "large_receive": 0,
                "small_then_large": 0,
                "small_receive": 0,
            },
            "scans": 0,
            "advertisements": { "used": 0, "dropped": 0 },
        },
        "buffers": {
            "message_size": 0,
            "send_buffer": 0,
            "fragmented": 0,
            "resizes": 0,
        },
    })
}

/// And of the one on shared memory, which has a number of its own in each place.
fn on_shm() -> Value {
    json!({
        "fd": 9,
        "local": "127.0.0.1:6379",
        "peer": "127.0.0.1:40000",
        "provider": "shm",
        "reason": "on-san",
        "state": "established",
        "sent": { "bytes": 5000, "messages": 5 },
        "received": { "bytes": 6000, "messages": 6 },
        "credits": 14,
        "credit_updates_sent": 4,
        "buffered_bytes": 100,
        "wakeups": { "sent": 1, "avoided": 2, "received": 3 },
        "control": {
            "send": { "controller": null, "swaps": 0, "waiters": 0 },
            "receive": { "controller": null, "swaps": 0, "waiters": 0 },
            "suspensions": 0,
            "suspended_microseconds": 0,
        },
        "rdma": {
            "mode": "large-receive",
            "threshold": 2048,
            "sent_bytes": 4000,
            "received_bytes": 3000,
            "behaviours": {
                "large_receive": 9,
                "small_then_large": 8,
                "small_receive": 7,
            },
            "scans": 12,
            "advertisements": { "used": 13, "dropped": 14 },
        },
        "buffers": {
            "message_size": 1536,
            "send_buffer": 1048576,
            "fragmented": 10,
            "resizes": 11,
        },
    })
}

#[test]
fn json_has_every_field() {
    with_publishing_child(publish, |pid| {
        let output = run(&["status", "--json", "--pid", &pid.to_string()]);
        assert!(output.status.success());
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        // SAFETY: no memory is involved.
        let uid = unsafe { libc::geteuid() };
        let expected = json!({ "processes": [{
            "pid": pid,
            "uid": uid,
            "program": "some-server",
            "returned": { "detached": 2, "peer-returned": 1 },
            "connections": [on_tcp(), on_shm()],
        }]});
        assert_eq!(status, expected);
    });
}

#[test]
fn the_table_explains_each_connection() {
    with_publishing_child(publish, |pid| {
        let output = run(&["status", "--pid", &pid.to_string()]);
        assert!(output.status.success());
        let table = text(&output.stdout);
        let expected = format!(
            "\
some-server (pid {pid}): 2 sockets
  FD  LOCAL           PEER             STATE        SENT MSGS RECV MSGS CREDIT WAKEUPS AVOIDED
  shm: is on the SAN (on-san)
   9  127.0.0.1:6379  127.0.0.1:40000  established  4.8K    5 5.8K    6     14       1       2
  tcp: found no program under the shim at its other end (peer-native)
   8  [::1]:6379      [::1]:40001      close-wait      0    0    0    0      0       0       0
"
        );
        assert_eq!(table, expected);
    });
}

#[test]
fn verbose_adds_rdma_and_buffers_below_a_session() {
    with_publishing_child(publish, |pid| {
        let output = run(&["status", "--verbose", "--pid", &pid.to_string()]);
        assert!(output.status.success());
        let expected = format!(
            "\
some-server (pid {pid}): 2 sockets
  returned to TCP: 2 detached, 1 peer-returned
  FD  LOCAL           PEER             STATE        SENT MSGS RECV MSGS CREDIT WAKEUPS AVOIDED
  shm: is on the SAN (on-san)
   9  127.0.0.1:6379  127.0.0.1:40000  established  4.8K    5 5.8K    6     14       1       2
      rdma: sent 3.9K (1000 otherwise), received 2.9K (2.9K otherwise), from 2.0K on
      mode: large-receive; seen: large-receive 9, small-then-large 8, small-receive 7
      scans: 12; advertisements: used 13, dropped 14
      buffers: message 1.5K, send 1.0M, fragmented 10, resizes 11
  tcp: found no program under the shim at its other end (peer-native)
   8  [::1]:6379      [::1]:40001      close-wait      0    0    0    0      0       0       0
"
        );
        assert_eq!(text(&output.stdout), expected);
    });
}

#[test]
fn a_process_that_ended_is_not_shown_and_its_file_is_removed() {
    let mut dead = 0;
    with_publishing_child(publish, |pid| dead = pid);
    // SAFETY: no memory is involved.
    let file = format!("/dev/shm/sanshim-user-{}/{dead}", unsafe { libc::geteuid() });
    let output = run(&["status", "--pid", &dead.to_string()]);
    assert!(text(&output.stdout).contains(&format!("Process {dead} does not run")));
    assert!(!Path::new(&file).exists());
}

#[test]
fn an_empty_registry_is_said_kindly() {
    let folder = Folder::new("empty");
    let output = run(&["status", "--registry", folder.path()]);
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(text(&output.stdout).starts_with("No program runs under the shim."));
    let output = run(&["status", "--json", "--registry", folder.path()]);
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(status, json!({ "processes": [] }));
}

#[test]
fn corrupt_files_are_one_line_each_on_standard_error() {
    let folder = Folder::new("corrupt");
    let own = std::process::id();
    fs::write(folder.0.join(own.to_string()), "not a registry").expect("write");
    fs::write(folder.0.join("1"), vec![0xa5; 5 << 20]).expect("write");
    fs::write(folder.0.join("not-a-pid"), "ignored").expect("write");
    let output = run(&["status", "--json", "--registry", folder.path()]);
    assert!(output.status.success());
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(status, json!({ "processes": [] }));
    let complaints: Vec<_> = text(&output.stderr).lines().collect();
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    assert!(complaints[0].contains("/1: is no registry file"), "{complaints:?}");
    assert!(complaints[1].contains(&format!("/{own}: is shorter")), "{complaints:?}");
}

/// Runs sanctl with standard output into a pipe whose reader has gone.
fn into_closed_pipe(mut command: Command) -> Output {
    let alone = no_other_child();
    let (reader, writer) = pipe();
    drop(reader);
    drop(alone);
    command.stdout(writer).stderr(Stdio::piped());
    let child = command.spawn().expect("sanctl runs");
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_closed_pipe_is_no_panic() {
    for arguments in [&["status"][..], &["status", "--json"], &["check"], &["--help"]] {
        // SIGPIPE as a shell gives it, then ignored as some parents leave it.
        let output = into_closed_pipe(sanctl(arguments));
        assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{arguments:?}: {output:?}");

        let mut command = sanctl(arguments);
        // SAFETY: signal is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                Ok(())
            });
        }
        let output = into_closed_pipe(command);
        assert_eq!(output.status.signal(), None, "{arguments:?}: {output:?}");
        assert!(!text(&output.stderr).contains("panicked"), "{output:?}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let output = sanctl(&["status"]).stdout(full).output().expect("sanctl runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write the output"), "{output:?}");
}

/// Where /proc does not show them, sanctl says where it would.
#[test]
fn processes_of_another_pid_namespace_are_said_to_be_elsewhere() {
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not run: a PID namespace needs root");
        return;
    }
    with_publishing_child(publish, |_| {
        let mut inside = Command::new("unshare");
        inside.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_sanctl"), "status"]);
        let output = inside.stdin(Stdio::null()).output().expect("unshare of util-linux");
        let said = text(&output.stderr);
        assert!(said.contains("run sanctl in their containers, or as root on the host"), "{said}");
    });
}
