//! TCP ports for servers that cannot choose one themselves.

use super::{eventually, Running};
use std::fs;
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
        if is_free(port) {
            return port;
        }
    }
    panic!("no free port from {} to {}", RANGE.start, RANGE.end);
}

/// Binds to the port and does not listen: a child of another test that is not yet another program has a copy of the
/// socket for a moment, and must not be in the server's way.
fn is_free(port: u16) -> bool {
    // SAFETY: plain data of which all zero is a valid value: every IPv6 address, and so every IPv4 address too.
    let mut any: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    (any.sin6_family, any.sin6_port) = (libc::AF_INET6 as u16, port.to_be());
    let (on, off) = (1i32, 0i32);
    // SAFETY: the options are integers, the address is one, and both are there during the calls.
    unsafe {
        let fd = libc::socket(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let set = |level, name, value: &i32| {
            libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), 4)
        };
        set(libc::SOL_SOCKET, libc::SO_REUSEADDR, &on);
        set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &off);
        let bound = libc::bind(fd, (&raw const any).cast(), size_of_val(&any) as u32);
        libc::close(fd);
        bound == 0
    }
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
