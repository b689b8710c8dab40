//! TCP ports for servers that cannot choose one themselves.

use super::{eventually, Running};
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// A port of 127.0.0.1 that is free and that the kernel gives nobody else for the next minute.
///
/// A connection whose server side closed first leaves the port in TIME_WAIT: the kernel then
/// neither hands it out for port 0 nor uses it for an outgoing connection, but a server that sets
/// `SO_REUSEADDR` may bind it.
pub fn reserve() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect to it");
    let (server, _) = listener.accept().expect("accept on it");
    drop(server);
    drop(client);
    port
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
