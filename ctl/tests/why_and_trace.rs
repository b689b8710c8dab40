//! `sanctl why` and `sanctl trace`: what happened to connections, of processes that publish it.

mod publishing;

use publishing::with_publishing_child;
use sanshim_core::reason::Reason;
use sanshim_core::registry::{self, Identity, Provider, Registry, State};
use serde_json::Value;
use std::net::SocketAddr;
use std::process::{Command, Output};

const SANCTL: &str = env!("CARGO_BIN_EXE_sanctl");

fn sanctl(arguments: &[&str]) -> Output {
    Command::new(SANCTL).args(arguments).output().expect("sanctl runs")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn identity(fd: i32, reason: Reason) -> Identity {
    Identity {
        fd,
        local: SocketAddr::from(([127, 0, 0, 1], 6379)),
        peer: SocketAddr::from(([127, 0, 0, 1], 40000 + fd as u16)),
        provider: if reason == Reason::OnSan { Provider::Shm } else { Provider::Tcp },
        reason,
        state: State::Established,
    }
}

/// Publishes connections with what happened to them: 7 went to the SAN, 8 did not, 9 is closed, and `many` more.
fn publish(many: i32) -> impl FnOnce() {
    move || {
        let registry = Registry::open(b"some-server").expect("a registry");
        let closed = registry.allocate().expect("a slot");
        registry::publish(closed, &identity(9, Reason::Quiet));
        registry.release(closed);
        for (fd, then) in [(7, Reason::OnSan), (8, Reason::PeerNative)] {
            let slot = registry.allocate().expect("a slot");
            registry::publish(slot, &identity(fd, Reason::Quiet));
            registry::publish(slot, &identity(fd, then));
        }
        for fd in 100..100 + many {
            let slot = registry.allocate().expect("a slot");
            registry::publish(slot, &identity(fd, Reason::OnSan));
        }
    }
}

#[test]
fn why_tells_what_happened_and_what_would_have_to_change() {
    with_publishing_child(publish(0), |pid| {
        let pid = pid.to_string();
        let on_san = text(&sanctl(&["why", &pid, "7"]));
        let told = |sentence: &str| {
            on_san.find(sentence).unwrap_or_else(|| panic!("{sentence:?} is missing in {on_san}"))
        };
        assert!(
            told("shm: is on the SAN") < told("first seen: has made few transfers yet"),
            "{on_san}"
        );
        // Of the closed one, whose place it has, it tells nothing.
        assert_eq!(on_san.matches("first seen").count(), 1, "{on_san}");
        assert!(!on_san.contains("closed"), "{on_san}");
        let on_tcp = text(&sanctl(&["why", &pid, "8"]));
        assert!(
            on_tcp.contains("tcp: found no program under the shim at its other end"),
            "{on_tcp}"
        );
        assert!(
            on_tcp.contains("What to do: start the program at the other end with sanctl run."),
            "{on_tcp}"
        );
        let missing = sanctl(&["why", &pid, "9"]);
        assert_eq!((missing.status.code(), text(&missing).as_str()), (Some(1), ""));
    });
}

/// A busy end finds nobody where the other does not look, and takes it for a native one.
#[test]
fn why_does_not_take_an_end_that_does_not_look_for_one_without_the_shim() {
    let both_ends = || {
        let registry = Registry::open(b"some-server").expect("a registry");
        for (fd, reason) in [(7, Reason::Quiet), (17, Reason::Policy)] {
            let near = identity(fd, Reason::PeerNative);
            let (local, peer) = (near.peer, near.local);
            let far = Identity { local, peer, ..identity(fd + 1, reason) };
            for end in [&near, &far] {
                registry::publish(registry.allocate().expect("a slot"), end);
            }
        }
    };
    with_publishing_child(both_ends, |pid| {
        let pid = pid.to_string();
        let why = text(&sanctl(&["why", &pid, "7"]));
        assert!(why.contains("tcp: waits until its other end is ready to move, too"), "{why}");
        assert!(
            why.contains("under the shim. Its own account: has made few transfers yet"),
            "{why}"
        );
        let why = text(&sanctl(&["why", &pid, "17"]));
        assert!(why.contains("tcp: the peer's shim keeps it on TCP"), "{why}");
        assert!(why.contains("What to do: ask at the other end"), "{why}");
        let status = text(&sanctl(&["status", "--json", "--pid", &pid]));
        assert!(status.contains("peer-stays") && !status.contains("peer-native"), "{status}");
    });
}

#[test]
fn why_groups_a_thousand_connections_by_reason() {
    with_publishing_child(publish(1000), |pid| {
        let all = text(&sanctl(&["why", &pid.to_string()]));
        assert!(all.contains("1001 sockets: is on the SAN"), "{all}");
        assert!(
            all.contains("1 socket: found no program under the shim at its other end"),
            "{all}"
        );
        assert!(all.contains(&format!("sanctl why {pid} 8")), "{all}");
        assert!(all.lines().all(|line| line.len() <= 100), "{all}");
    });
}

#[test]
fn why_tells_of_processes_without_the_shim() {
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
    let without = sanctl(&["why", &child.id().to_string()]);
    child.kill().and_then(|()| child.wait()).expect("the end of sleep");
    assert!(text(&without).contains("runs without the shim: it was started without it"));
    let missing = sanctl(&["why", &child.id().to_string()]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("there is no process"));
}

/// Process 1 is root's; where this root may not look at it, "ask as root" helps nobody.
#[test]
fn why_does_not_send_root_to_root() {
    let refused = sanctl(&["why", "1"]);
    // SAFETY: no memory is involved.
    let is_root = unsafe { libc::geteuid() } == 0;
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!is_root || !said.contains("ask as that user or as root"), "{said}");
    assert!(is_root || said.contains("ask as that user or as root"), "{said}");
}

#[test]
fn trace_shows_the_past_in_order_with_the_ends_of_what_lives() {
    with_publishing_child(publish(0), |pid| {
        let lines = text(&sanctl(&["trace", "--past", "--once", "--json", &pid.to_string()]));
        let events: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let told: Vec<_> = events
            .iter()
            .map(|one| (one["fd"].as_i64().unwrap(), one["event"].as_str().unwrap()))
            .collect();
        let expected = [
            (9, "opened"),
            (9, "closed"),
            (7, "opened"),
            (7, "reason"),
            (8, "opened"),
            (8, "reason"),
        ];
        assert_eq!(told, expected);
        assert_eq!(
            (&events[3]["value"], &events[3]["peer"]),
            (&"on-san".into(), &"127.0.0.1:40007".into())
        );
        let people = text(&sanctl(&["trace", "--past", "--once", &pid.to_string()]));
        assert_eq!(people.lines().count(), expected.len(), "{people}");
        assert!(people.contains("fd 7 127.0.0.1:6379 127.0.0.1:40007: is on the SAN"), "{people}");
    });
}

#[test]
fn trace_ends_with_the_process_and_names_one_that_cannot_be_followed() {
    let mut trace = None;
    with_publishing_child(publish(0), |pid| {
        let command = Command::new(SANCTL).args(["trace", &pid.to_string()]).spawn();
        trace = Some(command.expect("sanctl runs"));
        // It has begun once the process is told that somebody follows; else it names it as not there.
        std::thread::sleep(std::time::Duration::from_millis(300));
    });
    let status = trace.expect("begun").wait().expect("its end");
    assert_eq!(status.code(), Some(0));
    let missing = sanctl(&["trace", &std::process::id().to_string()]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("sanctl why"));
}
