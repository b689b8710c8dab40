//! Unix sockets that only processes with this library have: what goes to such a one may stay on the SAN.
//!
//! Who will receive a message cannot be told from outside: a socket may be inherited, passed on, or itself lie
//! in a message. So each is *marked* when it is made, before anybody else can have it, and the mark is taken off
//! (*distrust*) before it may get to a program without the library: before an exec, in a message to a socket
//! without a mark, before this process changes its user or confines itself. A mark never comes back. It lies on
//! the kernel's socket itself, where it outlives processes and where the process at the other end sees it: in
//! SO_RCVBUF, which has no effect on Unix sockets.
//!
//! It counts once a process with the library has asked there for a message: a fork child that is about to
//! become another program does not, so nothing waits in its queue that is not for that program.
//!
//! Between the look at the mark and the message's being sent nobody may change it: both happen at a *gate*, a
//! name in the abstract Unix namespace, which the kernel removes with its holder.

use crate::registry;
use crate::switch::handing_on::arrival;
use crate::switch::policy;
use crate::switch::socket::structure::Structure;
use crate::sys::packet::AbstractName;
use crate::sys::process::is_borrowed;
use crate::sys::{file, hidden, net, packet, process, time, unix_diag, Errno, Fd};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The marks as they are set; the kernel doubles them. Near the default, odd, and no sizes anybody would choose.
const MADE: i32 = 106_387;
/// Somebody has asked for a message.
const ASKED: i32 = 106_391;
/// What SO_RCVBUF is otherwise; zero: not seen yet.
static PLAIN: AtomicI32 = AtomicI32::new(0);
const USUAL: i32 = 212_992;

/// How long (ns) a sender waits for another one at the gate, and a process that takes a mark off for a sender:
/// that one needs microseconds, unless it is stopped just then.
const SENDER_WAITS: u64 = 20_000_000;
const OTHERS_WAIT: u64 = 1_000_000_000;
/// How long (ns) whoever is to receive it may take to accept the Unix socket's connection, and to ask.
const READY: u64 = 200_000_000;
const PAUSE: u64 = 50_000;

/// After the kernel gave the program a Unix socket, close-on-exec: no other program can have it.
pub fn mark(fd: Fd) {
    if is_borrowed() || policy::is_confined() || !is_stream(fd) {
        return;
    }
    if PLAIN.load(Relaxed) == 0 {
        PLAIN.store(receive_buffer(fd), Relaxed);
    }
    let _ = net::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &MADE);
}

/// What the program sees instead of the mark.
pub fn shown(receive_buffer: i32) -> i32 {
    match PLAIN.load(Relaxed) {
        _ if !is_mark(receive_buffer) => receive_buffer,
        0 => USUAL,
        plain => plain,
    }
}

fn is_mark(receive_buffer: i32) -> bool {
    receive_buffer == 2 * MADE || receive_buffer == 2 * ASKED
}

/// A program of this process waits for messages there, or is about to.
pub fn ask(fd: Fd) {
    if receive_buffer(fd) != 2 * MADE || is_borrowed() || policy::is_confined() {
        return;
    }
    let Ok(inode) = unix_diag::inode(fd) else { return };
    // A fork child must not get the gate.
    let _structure = Structure::lock();
    if let Some(_gate) = Gate::enter(inode, SENDER_WAITS) {
        if receive_buffer(fd) == 2 * MADE {
            let _ = net::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &ASKED);
        }
    }
}

/// True if `fd` is a Unix socket.
pub fn is_unix(fd: Fd) -> bool {
    net::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
}

/// True if it is one over which descriptors go to one receiver.
pub(in crate::switch) fn is_stream(fd: Fd) -> bool {
    let kind = || net::option(fd, libc::SOL_SOCKET, libc::SO_TYPE);
    is_unix(fd) && matches!(kind(), Ok(libc::SOCK_STREAM | libc::SOCK_SEQPACKET))
}

fn receive_buffer(fd: Fd) -> i32 {
    net::option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0)
}

/// True if this process was given a marked socket: then messages may come for it.
pub(in crate::switch) fn inherits_any() -> bool {
    let mut any = false;
    let _ = file::each_open(|fd| any |= is_mark(receive_buffer(fd)) && is_unix(fd));
    any
}

/// Before a Unix socket may get to a program without the library: nothing comes over it as it is any more, and
/// what lies in it already goes back to TCP. Nothing happens to other files. A vfork child may call it.
pub(in crate::switch) fn distrust(fd: Fd) {
    if !is_stream(fd) {
        return;
    }
    // Who saw the mark has sent when the gate is free.
    let gate = unix_diag::inode(fd).ok().and_then(|inode| Gate::enter(inode, OTHERS_WAIT));
    if is_mark(receive_buffer(fd)) {
        let plain = shown(2 * MADE) / 2;
        let _ = net::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &plain);
    }
    drop(gate);
    arrival::bring_back_queued(fd);
}

/// [`distrust`] for all of this process.
pub(in crate::switch) fn distrust_all() {
    let mut all: SmallVec<[Fd; 64]> = SmallVec::new();
    let _ = file::each_open(|fd| all.push(fd));
    all.into_iter().filter(|fd| !hidden::is_hidden(*fd)).for_each(distrust);
}

/// Before this process takes another effective user: descriptors' memory is only ever taken from one's own.
pub fn before_user_change(user: Option<u32>) {
    if !is_borrowed() && user.is_some_and(|user| user != process::euid()) {
        distrust_all();
    }
}

/// The other end of a Unix socket: only processes with this library, of this user, have it.
#[derive(Clone, Copy)]
pub(in crate::switch) struct Trusted {
    inode: u32,
}

/// The other end of `fd`, if it is that. Waited for, not long, where a process with the library is about to
/// accept the connection, or to ask for a message.
pub(in crate::switch) fn destination(fd: Fd) -> Option<Trusted> {
    if is_borrowed() || !is_stream(fd) {
        return None;
    }
    let own = unix_diag::inode(fd).ok()?;
    let begun = time::now();
    loop {
        let inode = unix_diag::lookup(fd, own).ok()??.peer?;
        let trusted = Trusted { inode };
        match (inode, trusted.mark(fd)) {
            (_, Some(ASKED)) => return Some(trusted),
            (_, Some(MADE)) => {}
            (0, _) if is_listened_to(fd) => {}
            _ => return None,
        }
        if time::now() - begun > READY {
            return None;
        }
        time::sleep(PAUSE);
    }
}

/// True if the connection is to be accepted by another process that has the library.
fn is_listened_to(fd: Fd) -> bool {
    packet::peer_credentials(fd)
        .is_ok_and(|(pid, _)| pid != process::pid() && registry::is_published(pid))
}

impl Trusted {
    /// Its mark, if a process of this user made it.
    fn mark(self, fd: Fd) -> Option<i32> {
        let socket = unix_diag::lookup(fd, self.inode).ok().flatten()?;
        let is_own = socket.user == Some(process::euid());
        [MADE, ASKED].into_iter().find(|mark| is_own && socket.receive_buffer == 2 * *mark as u32)
    }

    /// Sends over `fd`, without waiting, if it still is trusted, and will be until that is done.
    pub(in crate::switch) fn send<T>(self, fd: Fd, send: impl FnOnce() -> T) -> Option<T> {
        // A fork child must not get the gate.
        let _structure = Structure::lock();
        let _gate = Gate::enter(self.inode, SENDER_WAITS)?;
        (self.mark(fd) == Some(ASKED)).then(send)
    }
}

/// Held by one at a time: the name of a marked socket.
struct Gate(Fd);

impl Gate {
    fn enter(inode: u32, patience: u64) -> Option<Gate> {
        let name = AbstractName::new(format!("sanshim/1/passing/{inode}").as_bytes());
        let begun = time::now();
        loop {
            match packet::bind_datagrams(&name) {
                Ok(fd) => return Some(Gate(fd)),
                Err(Errno(libc::EADDRINUSE)) if time::now() - begun < patience => {
                    time::sleep(PAUSE);
                }
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        file::close(self.0);
    }
}
