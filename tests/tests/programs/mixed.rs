//! One end under the shim and a native one at the other: everything works on plain TCP, with a
//! reason, and nothing of ours appears in the stream that the native end sees.

use crate::{node, python, Helper};
use sanshim_tests::programs::status::expect_native_peer;
use sanshim_tests::programs::{eventually, locate, Mode, Sandbox, HANG};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

const CONNECTIONS: usize = 4;

/// An echo between ends of different modes; the shimmed one must say why it is on TCP.
fn echo(server_mode: Mode, server: &Helper, client_mode: Mode, client: &Helper) {
    let sandbox = Sandbox::new();
    let server = server.start(server_mode, &sandbox, &[]);
    let port = server.wait_for_line("port ");
    let mut client = client.start(client_mode, &sandbox, &[&port, &CONNECTIONS.to_string()]);
    client.wait_for_line("hold");
    if server_mode == Mode::Shim {
        expect_native_peer(&server, CONNECTIONS);
    }
    if client_mode == Mode::Shim {
        expect_native_peer(&client, CONNECTIONS);
    }
    client.write("go on\n");
    let total = CONNECTIONS * crate::ECHOED_PER_CONNECTION;
    assert_eq!(client.finish().trim_end(), format!("hold\nok {total}"));
    server.terminate();
}

#[test]
fn shimmed_server_native_client() {
    echo(Mode::Shim, &python::server("epoll"), Mode::Native, &python::client("blocking"));
    echo(Mode::Shim, &node::script("echo_server.js"), Mode::Native, &python::client("asyncio"));
}

#[test]
fn native_server_shimmed_client() {
    echo(Mode::Native, &python::server("blocking"), Mode::Shim, &python::client("timeout"));
    echo(Mode::Native, &python::server("asyncio"), Mode::Shim, &node::script("echo_client.js"));
}

/// Native and shimmed clients of one server at the same time, each served its own way.
#[test]
fn shimmed_server_both_clients() {
    let sandbox = Sandbox::new();
    let server = python::server("epoll").start(Mode::Shim, &sandbox, &[]);
    let port = server.wait_for_line("port ");
    let count = CONNECTIONS.to_string();
    let mut clients = [Mode::Native, Mode::Shim, Mode::Native, Mode::Shim].map(|mode| {
        let client = python::client("epoll").start(mode, &sandbox, &[&port, &count]);
        (mode, client)
    });
    for (mode, client) in &clients {
        client.wait_for_line("hold");
        mode.expect_shm(client, CONNECTIONS);
    }
    for (_, client) in &mut clients {
        client.write("go on\n");
    }
    let total = CONNECTIONS * crate::ECHOED_PER_CONNECTION;
    for (_, client) in clients {
        assert_eq!(client.finish().trim_end(), format!("hold\nok {total}"));
    }
    server.terminate();
}

/// Everything that a plain client receives from a shimmed server, from the first byte to the last.
fn plain_client(mode: Mode) {
    let sandbox = Sandbox::new();
    let server = python::server("epoll").start(mode, &sandbox, &[]);
    let port: u16 = server.wait_for_line("port ").parse().expect("a port");
    for size in [0, 1, 1519, 1_000_000] {
        let message: Vec<u8> = (0..size).map(|i: usize| (i % 251) as u8).collect();
        let mut stream = connect(port);
        let mut writer = stream.try_clone().expect("a second handle");
        let sent = message.clone();
        let sender = std::thread::spawn(move || {
            writer.write_all(&sent).expect("send");
            writer.shutdown(Shutdown::Write).expect("end of stream");
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("receive");
        sender.join().expect("the sender");
        assert_eq!(received.len(), message.len());
        assert!(received == message, "a plain client got other bytes than it sent");
    }
    server.terminate();
}

/// Everything that a plain server receives from a shimmed client.
fn plain_server(mode: Mode) {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.set_nonblocking(true).expect("accept with a time limit");
    let port = listener.local_addr().expect("its address").port();
    let sender = "import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
s.sendall(bytes(i % 251 for i in range(int(sys.argv[2]))))
s.shutdown(socket.SHUT_WR)
sys.exit(0 if s.recv(1) == b'' else 'bytes from nowhere')";
    for size in [0, 1, 1519, 1_000_000] {
        let arguments = ["-c", sender, &port.to_string(), &size.to_string()];
        let client = sandbox.start(mode, locate::python(), arguments);
        let (mut stream, _) = eventually(
            || {
                client.assert_alive();
                listener.accept().ok()
            },
            || format!("the client never connected\n{}", client.output()),
        );
        stream.set_read_timeout(Some(HANG)).expect("a time limit");
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("receive");
        drop(stream);
        let message: Vec<u8> = (0..size).map(|i: usize| (i % 251) as u8).collect();
        assert_eq!(received.len(), message.len());
        assert!(received == message, "a plain server got other bytes than were sent");
        client.finish();
    }
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect");
    stream.set_read_timeout(Some(HANG)).expect("a time limit");
    stream
}

crate::both! {
    plain_client: plain_client_native, plain_client_shim;
    plain_server: plain_server_native, plain_server_shim;
}
