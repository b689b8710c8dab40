//! memcached with a client that speaks its text protocol.

use crate::{both, python};
use sanshim_tests::programs::{port, Mode, Running, Sandbox};

fn values(mode: Mode) {
    serve(mode, "root", |mode, client, server| {
        mode.expect_shm(client, 4);
        mode.expect_shm(server, 4);
    });
}

/// A server that gives up root: what it serves must be the same, on whatever it is served.
fn as_nobody(mode: Mode) {
    serve(mode, "nobody", |_, _, _| {});
}

fn serve(mode: Mode, user: &str, look: impl Fn(Mode, &Running, &Running)) {
    let sandbox = Sandbox::new();
    let number = port::reserve();
    let port = number.to_string();
    // A user is only accepted, and only needed, by root.
    let arguments = ["-u", user, "-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", "2", "-I", "8m"];
    let mut server = sandbox.start(mode, "memcached", arguments);
    port::wait_listening(number, &mut server);
    let mut client = python::script("memcached_client.py", &[&port]).start(mode, &sandbox, &[]);
    client.wait_for_line("hold");
    look(mode, &client, &server);
    client.write("go on\n");
    assert_eq!(client.finish(), "hold\nok\n");
    server.terminate();
}

both! {
    values: memcached_values_native, memcached_values_shim;
    as_nobody: memcached_as_nobody_native, memcached_as_nobody_shim;
}
