//! `sanctl top` over what this test process publishes, on terminals of several sizes.

mod publishing;
mod terminal;

use publishing::with_publishing_child;
use sanshim_core::reason::Reason;
use sanshim_core::registry::{self, Identity, Provider, Registry, Slot, State};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;
use terminal::{Terminal, SANCTL};

fn publish(registry: &Registry, fd: i32, provider: Provider, reason: Reason) -> &Slot {
    let slot = registry.allocate().expect("a slot");
    registry::publish(
        slot,
        &Identity {
            fd,
            local: SocketAddr::from(([127, 0, 0, 1], 6379)),
            peer: SocketAddr::from(([127, 0, 0, 1], 10_000 + fd as u16)),
            provider,
            reason,
            state: State::Established,
        },
    );
    slot
}

/// One busy connection of `count`, the others at rest, half of them on TCP; its counters grow until the process ends.
fn busy(count: i32) -> impl FnOnce() {
    move || {
        let registry = Registry::open(b"some-server").expect("a registry");
        for fd in 101..100 + count {
            match fd % 2 {
                0 => publish(&registry, fd, Provider::Shm, Reason::OnSan),
                _ => publish(&registry, fd, Provider::Tcp, Reason::PeerNative),
            };
        }
        // Published until the process ends.
        let registry: &'static Registry = Box::leak(Box::new(registry));
        let slot = publish(registry, 100, Provider::Shm, Reason::OnSan);
        std::thread::spawn(move || loop {
            slot.sent.bytes.add(1 << 20);
            slot.received.messages.add(1);
            std::thread::sleep(Duration::from_millis(10));
        });
    }
}

fn top(pid: u32, size: [u16; 2]) -> Terminal {
    Terminal::start(&["top", "--interval", "0.1", "--pid", &pid.to_string()], size)
}

fn begins_with(lines: &[String], text: &str) -> bool {
    lines[0].starts_with(text)
}

#[test]
fn the_busiest_of_a_thousand_is_on_top_of_an_ordinary_terminal() {
    with_publishing_child(busy(1000), |pid| {
        let mut top = top(pid, [24, 80]);
        let is_first = |lines: &[String]| {
            lines[2].contains(" 100 127.0.0.1:10100 ") && lines[2].contains("M ")
        };
        let lines = top.until("the busy one first", is_first);
        assert!(
            begins_with(&lines, "sanctl top: 1000 connections, 500 on the SAN, "),
            "{lines:#?}"
        );
        let headings =
            "    PID PROGRAM       FD PEER                  ON     OUT/s   IN/s MSGS/s WAKE/s";
        assert_eq!(lines[1], headings);
        assert_eq!(lines.len(), 24);
        assert!(lines[23].starts_with("q quit  <> sort: bytes"), "{lines:#?}");
        // The last of them.
        top.press("\x1b[F");
        top.until("the end", |lines| lines[22].contains(" 1099 127.0.0.1:11099 "));
        top.press("n");
        top.until("those on TCP", |lines| {
            begins_with(lines, "sanctl top: 500 connections, 0 on the SAN")
        });
        top.press(" n");
        top.until("all of them while it is paused", |lines| {
            begins_with(lines, "sanctl top: 1000 connections") && lines[0].ends_with(", paused")
        });
        top.press("q");
        assert_eq!(top.end(), Some(0));
    });
}

#[test]
fn a_process_has_a_line_and_a_small_terminal_loses_columns() {
    with_publishing_child(busy(4), |pid| {
        let mut top = top(pid, [5, 40]);
        top.until("a table", |lines| lines[1] == "    PID PROGRAM       FD");
        top.press("p");
        let is_so = |lines: &[String]| lines[2].contains("some-server            4      2");
        top.until("a process", is_so);
        top.press("\x03");
        assert_eq!(top.end(), Some(0));
    });
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    with_publishing_child(busy(1), |pid| {
        let mut top = top(pid, [24, 100]);
        top.until("a table", |lines| lines[1].contains("PROGRAM"));
        // SAFETY: our own child.
        unsafe { libc::kill(top.child.id() as i32, libc::SIGTERM) };
        assert_eq!(top.end(), Some(0));
    });
}

#[test]
fn once_prints_rates() {
    with_publishing_child(busy(3), |pid| {
        let run = |more: &[&str]| {
            let mut command = Command::new(SANCTL);
            command
                .args(["top", "--once", "--interval", "0.2", "--pid", &pid.to_string()])
                .args(more);
            let output = command.stdin(Stdio::null()).output().expect("sanctl runs");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        let text = run(&[]);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(
            text.lines().nth(1).is_some_and(|line| line.contains("some-serv…   100 ")),
            "{text}"
        );
        let found: serde_json::Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
        let first = &found["connections"][0];
        assert_eq!(
            (first["fd"].as_i64(), first["provider"].as_str()),
            (Some(100), Some("shm")),
            "{found}"
        );
        assert!(first["sent_bytes"].as_u64() > Some(1 << 20), "{found}");
        assert!(first["messages"].as_u64() > Some(0), "{found}");
        let found: serde_json::Value =
            serde_json::from_str(&run(&["--json", "--by", "process"])).expect("JSON");
        let process = &found["processes"][0];
        assert_eq!(
            (process["connections"].as_u64(), process["on_san"].as_u64()),
            (Some(3), Some(2)),
            "{found}"
        );
    });
}

#[test]
fn a_name_that_a_terminal_would_obey_is_escaped_in_json() {
    let name = "a\u{202e}b\u{9b}c";
    let of_that_name = || {
        let registry = Registry::open(name.as_bytes()).expect("a registry");
        publish(Box::leak(Box::new(registry)), 100, Provider::Shm, Reason::OnSan);
    };
    with_publishing_child(of_that_name, |pid| {
        let pid = pid.to_string();
        for by in ["process", "connection"] {
            let mut top = Command::new(SANCTL);
            top.args(["top", "--once", "--interval", "0.1", "--json", "--by", by, "--pid", &pid]);
            let text = String::from_utf8(top.output().expect("sanctl runs").stdout).expect("UTF-8");
            assert!(text.is_ascii(), "{text}");
            let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let rows = found["processes"].as_array().or(found["connections"].as_array());
            assert_eq!(rows.expect("rows")[0]["program"], name, "{found}");
        }
    });
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let output =
        Command::new(SANCTL).arg("top").stdin(Stdio::null()).output().expect("sanctl runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("use --once"), "{output:?}");
}
