//! `sanctl detach` of connections that do not answer.

mod publishing;
mod terminal;

use publishing::with_publishing_child;
use sanshim_core::reason::Reason;
use sanshim_core::registry::{self, Identity, Provider, Registry, State};
use std::net::SocketAddr;
use std::process::Command;
use terminal::Terminal;

const SANCTL: &str = env!("CARGO_BIN_EXE_sanctl");

/// Two connections of a program that never makes a call.
fn silent() {
    let registry = Registry::open(b"silent").expect("a registry");
    // Published until the process ends.
    let registry: &'static Registry = Box::leak(Box::new(registry));
    for fd in [100, 101] {
        let slot = registry.allocate().expect("a slot");
        let [local, peer] =
            [6379, 10_000 + fd].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let (provider, reason) = (Provider::Shm, Reason::OnSan);
        let state = State::Established;
        let fd = i32::from(fd);
        registry::publish(slot, &Identity { fd, local, peer, provider, reason, state });
    }
}

#[test]
fn who_waits_for_long_sees_how_far_it_is() {
    with_publishing_child(silent, |pid| {
        let arguments = ["detach", "--wait", "1500", &pid.to_string(), "all"];
        let mut detach = Terminal::start(&arguments, [24, 80]);
        detach.until("progress", |lines| lines[0].starts_with("0 of 2 went back to TCP, 1s"));
        let lines = detach.until("the end", |lines| lines[0].contains("the others do when"));
        assert!(lines[0].starts_with("0 of 2 went back to TCP;"), "{lines:#?}");
        assert_eq!(detach.end(), Some(0));
    });
}

#[test]
fn what_there_is_nothing_of_is_named() {
    let nothing = || {
        let registry = Registry::open(b"idle").expect("a registry");
        // Published until the process ends.
        Box::leak(Box::new(registry));
    };
    with_publishing_child(nothing, |pid| {
        for (which, expected) in [
            ("all", format!("Process {pid} has no connections on the SAN.\n")),
            ("7", format!("Process {pid} has no connection on the SAN with descriptor 7.\n")),
        ] {
            let detach = Command::new(SANCTL).args(["detach", &pid.to_string(), which]).output();
            let said = detach.expect("sanctl runs").stdout;
            assert_eq!(String::from_utf8(said).expect("text"), expected);
        }
    });
}
