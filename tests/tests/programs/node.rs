//! Node: net and http, on libuv.

use crate::{both, echo, Helper};
use sanshim_tests::programs::{locate, Mode, Sandbox};

pub(crate) fn script(name: &str) -> Helper {
    Helper::new("node", &[locate::helper(name).to_str().expect("a path in UTF-8")])
}

fn net(mode: Mode) {
    echo(mode, &script("echo_server.js"), &script("echo_client.js"), "127.0.0.1");
}

fn net_against_python(mode: Mode) {
    echo(mode, &crate::python::server("epoll"), &script("echo_client.js"), "127.0.0.1");
    echo(mode, &script("echo_server.js"), &crate::python::client("asyncio"), "127.0.0.1");
}

fn http(mode: Mode) {
    let sandbox = Sandbox::new();
    let server = script("http_server.js").start(mode, &sandbox, &[]);
    let port = server.wait_for_line("port ");
    let mut client = script("http_client.js").start(mode, &sandbox, &[&port]);
    client.wait_for_line("hold");
    mode.expect_shm(&client, 1);
    mode.expect_shm(&server, 1);
    client.write("go on\n");
    assert_eq!(client.finish(), "hold\nok\n");
    server.terminate();
}

both! {
    net: node_net_native, node_net_shim;
    net_against_python: node_net_against_python_native, node_net_against_python_shim;
    http: node_http_native, node_http_shim;
}
