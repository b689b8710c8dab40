//! Sockets by plain libc calls: listen, accept, connect, send, receive, close.

use crate::error::BenchError;
use crate::options::Options;
use crate::sys::check;
use std::ffi::c_int;
use std::io::Write;
use std::{io, mem};

/// A descriptor, closed when dropped.
pub(crate) struct BenchSocket(pub(crate) c_int);

impl Drop for BenchSocket {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and closed once.
        unsafe { libc::close(self.0) };
    }
}

fn loopback(port: u16) -> libc::sockaddr_in {
    // SAFETY: all zero is a valid sockaddr_in.
    let mut address: libc::sockaddr_in = unsafe { mem::zeroed() };
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    address
}

const ADDRESS_LENGTH: libc::socklen_t = mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;

fn stream_socket() -> Result<BenchSocket, BenchError> {
    // SAFETY: socket takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    check("socket", fd).map(BenchSocket)
}

fn no_delay(socket: &BenchSocket) -> Result<(), BenchError> {
    let on: c_int = 1;
    // SAFETY: the option value is an int of its own size.
    let result = unsafe {
        libc::setsockopt(
            socket.0,
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            mem::size_of_val(&on) as libc::socklen_t,
        )
    };
    check("setsockopt", result).map(drop)
}

/// Listens on a free port of 127.0.0.1 and prints the port for the process that started us.
pub(crate) fn listen(options: &Options) -> Result<BenchSocket, BenchError> {
    let socket = stream_socket()?;
    let mut address = loopback(0);
    let mut length = ADDRESS_LENGTH;
    let backlog = c_int::try_from(options.connections).unwrap_or(c_int::MAX).max(128);
    // SAFETY: `address` is a sockaddr_in of `length` bytes, alive during all three calls.
    unsafe {
        check("bind", libc::bind(socket.0, (&raw const address).cast(), length))?;
        check("listen", libc::listen(socket.0, backlog))?;
        let result = libc::getsockname(socket.0, (&raw mut address).cast(), &mut length);
        check("getsockname", result)?;
    }
    println!("{}", u16::from_be(address.sin_port));
    io::stdout().flush().map_err(|source| BenchError::System { call: "write", source })?;
    Ok(socket)
}

/// Accepts the next connection.
pub(crate) fn accept(listener: &BenchSocket) -> Result<BenchSocket, BenchError> {
    // SAFETY: no address is asked for.
    let fd = unsafe {
        libc::accept4(listener.0, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
    };
    let socket = check("accept4", fd).map(BenchSocket)?;
    no_delay(&socket)?;
    Ok(socket)
}

/// Connects to the server of this run.
pub(crate) fn connect(options: &Options) -> Result<BenchSocket, BenchError> {
    let socket = stream_socket()?;
    let address = loopback(options.port);
    // SAFETY: `address` is a sockaddr_in of the length given.
    let result = unsafe { libc::connect(socket.0, (&raw const address).cast(), ADDRESS_LENGTH) };
    check("connect", result)?;
    no_delay(&socket)?;
    Ok(socket)
}

/// As [`connect`], but does not wait. The socket does not block, and can be written to once it is connected.
pub(crate) fn begin_connect(options: &Options) -> Result<BenchSocket, BenchError> {
    let socket = stream_socket()?;
    non_blocking(&socket)?;
    no_delay(&socket)?;
    let address = loopback(options.port);
    // SAFETY: `address` is a sockaddr_in of the length given.
    let result = unsafe { libc::connect(socket.0, (&raw const address).cast(), ADDRESS_LENGTH) };
    match check("connect", result) {
        Err(BenchError::System { source, .. })
            if source.raw_os_error() == Some(libc::EINPROGRESS) => {}
        result => drop(result?),
    }
    Ok(socket)
}

/// One `recv`. `None` if it would block.
pub(crate) fn receive(socket: &BenchSocket, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
    receive_with(socket, into, 0)
}

/// As [`receive`], but never waits, even if the socket blocks.
pub(crate) fn receive_now(
    socket: &BenchSocket,
    into: &mut [u8],
) -> Result<Option<usize>, BenchError> {
    receive_with(socket, into, libc::MSG_DONTWAIT)
}

fn receive_with(
    socket: &BenchSocket,
    into: &mut [u8],
    flags: c_int,
) -> Result<Option<usize>, BenchError> {
    // SAFETY: the buffer is live and as long as said.
    let count = unsafe { libc::recv(socket.0, into.as_mut_ptr().cast(), into.len(), flags) };
    transferred("recv", count)
}

/// One `send`. `None` if it would block.
pub(crate) fn send(socket: &BenchSocket, data: &[u8]) -> Result<Option<usize>, BenchError> {
    // SAFETY: the buffer is live and as long as said.
    let count =
        unsafe { libc::send(socket.0, data.as_ptr().cast(), data.len(), libc::MSG_NOSIGNAL) };
    transferred("send", count)
}

fn transferred(call: &'static str, count: isize) -> Result<Option<usize>, BenchError> {
    match usize::try_from(count) {
        Ok(count) => Ok(Some(count)),
        Err(_) => {
            let source = io::Error::last_os_error();
            match source.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(BenchError::System { call, source }),
            }
        }
    }
}

/// Ends our direction of the stream.
pub(crate) fn finish(socket: &BenchSocket) -> Result<(), BenchError> {
    // SAFETY: shutdown takes no pointers.
    check("shutdown", unsafe { libc::shutdown(socket.0, libc::SHUT_WR) }).map(drop)
}

/// Makes the socket non-blocking.
pub(crate) fn non_blocking(socket: &BenchSocket) -> Result<(), BenchError> {
    // SAFETY: these commands take and give integers.
    unsafe {
        let flags = check("fcntl", libc::fcntl(socket.0, libc::F_GETFL))?;
        check("fcntl", libc::fcntl(socket.0, libc::F_SETFL, flags | libc::O_NONBLOCK))?;
    }
    Ok(())
}
