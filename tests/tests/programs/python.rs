//! Python: asyncio, blocking, with time-outs, every selector, socketserver, http.

use crate::{both, echo, Helper};
use sanshim_tests::programs::{locate, Mode, Sandbox};
use std::fs;

pub(crate) fn script(name: &str, arguments: &[&str]) -> Helper {
    let path = locate::helper(name);
    let path = path.to_str().expect("a path in UTF-8");
    Helper::new(locate::python(), &[&["-u", path], arguments].concat())
}

pub(crate) fn server(kind: &str) -> Helper {
    script("echo_server.py", &[kind])
}

pub(crate) fn client(kind: &str) -> Helper {
    script("echo_client.py", &[kind])
}

fn asyncio(mode: Mode) {
    echo(mode, &server("asyncio"), &client("asyncio"), "127.0.0.1");
}

fn blocking(mode: Mode) {
    echo(mode, &server("blocking"), &client("blocking"), "127.0.0.1");
}

fn timeout(mode: Mode) {
    echo(mode, &server("threading"), &client("timeout"), "127.0.0.1");
}

fn epoll(mode: Mode) {
    echo(mode, &server("epoll"), &client("epoll"), "127.0.0.1");
}

fn poll(mode: Mode) {
    echo(mode, &server("poll"), &client("poll"), "127.0.0.1");
}

fn select(mode: Mode) {
    echo(mode, &server("select"), &client("select"), "127.0.0.1");
}

fn forking(mode: Mode) {
    echo(mode, &server("forking"), &client("blocking"), "127.0.0.1");
}

fn asyncio_ipv6(mode: Mode) {
    echo(mode, &script("echo_server.py", &["asyncio", "::1"]), &client("epoll"), "::1");
}

fn http(mode: Mode) {
    let sandbox = Sandbox::new();
    let folder = sandbox.file("files");
    fs::create_dir(&folder).expect("the folder of the files");
    let names = ["0", "1", "100000", "3000000"];
    for name in names {
        let size: usize = name.parse().expect("a size");
        let content: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();
        fs::write(folder.join(name), content).expect("a file");
    }
    let folder = folder.to_str().expect("a path in UTF-8");
    let server = script("http_server.py", &[folder]).start(mode, &sandbox, &[]);
    let port = server.wait_for_line("port ");
    let arguments = [&[port.as_str(), folder], &names[..]].concat();
    let mut client = script("http_client.py", &[]).start(mode, &sandbox, &arguments);
    client.wait_for_line("hold");
    mode.expect_shm(&client, 1);
    mode.expect_shm(&server, 1);
    client.write("go on\n");
    assert_eq!(client.finish(), "hold\nok\n");
    server.terminate();
}

both! {
    asyncio: python_asyncio_native, python_asyncio_shim;
    blocking: python_blocking_native, python_blocking_shim;
    timeout: python_timeout_native, python_timeout_shim;
    epoll: python_epoll_native, python_epoll_shim;
    poll: python_poll_native, python_poll_shim;
    select: python_select_native, python_select_shim;
    forking: python_forking_native, python_forking_shim;
    asyncio_ipv6: python_asyncio_ipv6_native, python_asyncio_ipv6_shim;
    http: python_http_native, python_http_shim;
}
