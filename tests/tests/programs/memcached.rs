//! memcached with a client that speaks its text protocol.

use crate::both;
use sanshim_tests::programs::status::{expect_peer_that_stays, expect_tcp};
use sanshim_tests::programs::{locate, port, Mode, Running, Sandbox};
use std::fs;
use std::process::Command;

const CONNECTIONS: usize = 4;

fn values(mode: Mode) {
    serve(mode, "root", "", |client, server| {
        mode.expect_shm(client, CONNECTIONS);
        mode.expect_shm(server, CONNECTIONS);
    });
}

/// A server that gives up root, before it listens, is another user's to root's clients.
fn as_nobody(mode: Mode) {
    // SAFETY: no memory is involved.
    let is_root = unsafe { libc::geteuid() } == 0;
    serve(mode, "nobody", "", |client, server| {
        if mode == Mode::Shim && is_root {
            expect_tcp(client, CONNECTIONS, "other-user");
            expect_peer_that_stays(server, CONNECTIONS);
        }
    });
}

/// Unless they allow it.
fn as_allowed_nobody(mode: Mode) {
    serve(mode, "nobody", "allow_users = [\"nobody\"]\n", |client, server| {
        mode.expect_shm(client, CONNECTIONS);
        mode.expect_shm(server, CONNECTIONS);
    });
}

fn serve(mode: Mode, user: &str, rules: &str, look: impl Fn(&Running, &Running)) {
    let sandbox = Sandbox::new();
    let number = port::reserve();
    let port = number.to_string();
    fs::write(sandbox.file("rules.toml"), rules).expect("the rules");
    let launch = |name: &str, mut command: Command| {
        command.env("SANSHIM_CONFIG", sandbox.file("rules.toml"));
        sandbox.launch(name, command)
    };
    let mut server = mode.command("memcached");
    // A user is only accepted, and only needed, by root.
    server.args(["-u", user, "-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", "2", "-I", "8m"]);
    let mut server = launch("memcached", server);
    port::wait_listening(number, &mut server);
    let mut client = mode.command(locate::python());
    client.arg("-u").arg(locate::helper("memcached_client.py")).arg(&port);
    let mut client = launch("client", client);
    client.wait_for_line("hold");
    look(&client, &server);
    client.write("go on\n");
    assert_eq!(client.finish(), "hold\nok\n");
    server.terminate();
}

both! {
    values: memcached_values_native, memcached_values_shim;
    as_nobody: memcached_as_nobody_native, memcached_as_nobody_shim;
    as_allowed_nobody: memcached_as_allowed_nobody_native, memcached_as_allowed_nobody_shim;
}
