//! TCP ports for servers that cannot choose one themselves.

use super::{eventually, Running};
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// First and last port handed out: below the range that the kernel takes outgoing ports and port 0
/// from, so that no connection of another test can be in the way.
const RANGE: std::ops::Range<u32> = 10_000..32_000;

/// A port that is free on every address, and that nobody in this process was given before.
pub fn reserve() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let size = RANGE.end - RANGE.start;
    let first = std::process::id().wrapping_mul(101) % size;
    for _ in 0..size {
        let offset = (first + NEXT.fetch_add(1, Ordering::Relaxed)) % size;
        let port = (RANGE.start + offset) as u16;
        let free_v4 = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
        if free_v4 && TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {} to {}", RANGE.start, RANGE.end);
}

/// Waits until somebody listens on the port, without connecting to it.
///
/// # Panics
/// When `server` ends before it listens.
pub fn wait_listening(port: u16, server: &mut Running) {
    eventually(
        || {
            server.assert_alive();
            is_listening(port).then_some(())
        },
        || format!("nobody listens on port {port}\n{}", server.output()),
    );
}

fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let local = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            fields.len() > 3 && fields[1].ends_with(&local) && fields[3] == LISTEN
        })
    })
}
