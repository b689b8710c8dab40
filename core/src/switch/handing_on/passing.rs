//! Descriptors that a message takes to another process (SCM_RIGHTS).
//!
//! Where only processes with this library can receive it ([`trust`]), what they need to go on over the SAN goes
//! along, after the program's own descriptors ([`manifest`]), and [`arrival`](crate::switch::handing_on::arrival) takes it off again.
//! While it is in flight the message is one more process of that end, like a fork child that does nothing. Else
//! connections go back to TCP first.

use crate::switch::endpoint::memory::Memory;
use crate::switch::handing_on::exec;
use crate::switch::handing_on::manifest::{self, Entry};
use crate::switch::handing_on::trust::{self, Trusted};
use crate::switch::setup;
use crate::switch::socket::phase;
use crate::switch::socket::table::{self, Pinned};
use crate::sys::control::{self, MOST_DESCRIPTORS};
use crate::sys::user::{self, Access};
use crate::sys::{file, net, poll, process, Errno, Fd, Result};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::SeqCst;

/// How long (ns) a receiver that takes nothing is waited for before the connection goes back to TCP.
const FULL_FOR: u64 = 200_000_000;

/// What became of a message.
pub enum Sent {
    /// It is the kernel's to send.
    Kernel,
    /// So many of its bytes were sent, and all its descriptors.
    Part(usize),
    /// It is not sent.
    Failed(Errno),
}

/// Before the program sends a message over a socket that is not on the SAN.
///
/// # Safety
/// The message is the program's, and stays as it is during the call.
pub unsafe fn send(over: Fd, message: *const libc::msghdr, flags: i32) -> Sent {
    // SAFETY: the caller's promise.
    let Some((header, given)) = (unsafe { control_of(message) }) else { return Sent::Kernel };
    let mut fds: SmallVec<[Fd; 16]> = SmallVec::new();
    let rights = |level, kind| (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let _ = control::each(given, |level, kind, data| {
        if rights(level, kind) {
            fds.extend(control::descriptors(data));
        }
    });
    let cargo = Cargo::of(&fds);
    if cargo.sockets.is_empty() && cargo.unix.is_empty() {
        return Sent::Kernel;
    }
    if let Some(to) = trust::destination(over).filter(|_| header.msg_namelen == 0) {
        if let Some(along) = Along::new(&cargo, fds.len()) {
            let send = || along.send(over, to, &header, given, flags);
            let mut sent = send();
            if sent == Some(Err(Errno(libc::EAGAIN))) {
                if !may_block(over, flags) {
                    // The program tries again.
                    return Sent::Failed(Errno(libc::EAGAIN));
                }
                let mut fds = [libc::pollfd { fd: over, events: libc::POLLOUT, revents: 0 }];
                if poll::poll(&mut fds, Some(FULL_FOR), None) == Ok(1) {
                    sent = send();
                }
            }
            if let Some(Ok(n)) = sent {
                return Sent::Part(n);
            }
        }
    }
    cargo.unix.iter().for_each(|fd| trust::distrust(*fd));
    let sockets: SmallVec<[Fd; 4]> = cargo.sockets.iter().map(|(_, fd)| *fd).collect();
    if exec::pass(&sockets) {
        Sent::Kernel
    } else {
        Sent::Failed(Errno(libc::EOPNOTSUPP))
    }
}

/// True if a call with these flags may wait.
pub fn may_block(fd: Fd, flags: i32) -> bool {
    let nonblocking = file::status_flags(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0);
    flags & libc::MSG_DONTWAIT == 0 && !nonblocking
}

/// The header and the control messages, where there are any that can be read.
unsafe fn control_of<'a>(message: *const libc::msghdr) -> Option<(libc::msghdr, &'a [u8])> {
    let header = user::read(message).ok()?;
    let (at, length) = (header.msg_control.cast::<u8>(), header.msg_controllen);
    if length < control::HEADER || at.is_null() {
        return None;
    }
    user::check(at, length, Access::Read).ok()?;
    // SAFETY: readable, and the caller's promise.
    Some((header, unsafe { std::slice::from_raw_parts(at, length) }))
}

/// What of a message's descriptors needs care.
struct Cargo {
    /// Connections and listeners.
    sockets: SmallVec<[(Pinned, Fd); 4]>,
    /// Unix sockets, over which others may come to whoever gets them.
    unix: SmallVec<[Fd; 4]>,
}

impl Cargo {
    fn of(fds: &[Fd]) -> Self {
        let mut cargo = Cargo { sockets: SmallVec::new(), unix: SmallVec::new() };
        let concerned = |socket: &Pinned| {
            matches!(socket.phase(), phase::SAN | phase::CONNECTING | phase::LISTENER)
        };
        for fd in fds {
            match table::socket(*fd) {
                // Who gets it may use it at any moment.
                Some(socket) if socket.phase() == phase::TCP => setup::stay_on_tcp(&socket),
                Some(socket) if concerned(&socket) => cargo.sockets.push((socket, *fd)),
                None if trust::is_stream(*fd) => cargo.unix.push(*fd),
                _ => {}
            }
        }
        cargo
    }
}

/// What goes along with a message.
struct Along<'a> {
    connections: SmallVec<[&'a Pinned; 4]>,
    added: SmallVec<[Fd; 8]>,
    /// The manifest; -1: there is nothing for one.
    manifest: Fd,
}

impl Drop for Along<'_> {
    fn drop(&mut self) {
        if self.manifest >= 0 {
            file::close(self.manifest);
        }
    }
}

impl<'a> Along<'a> {
    /// For a message with `own` descriptors. Connections that cannot go on go back to TCP; `None` if there is
    /// one that can not do that either, or no room.
    fn new(cargo: &'a Cargo, own: usize) -> Option<Self> {
        let mut along =
            Along { connections: SmallVec::new(), added: SmallVec::new(), manifest: -1 };
        let mut entries: SmallVec<[Entry; 4]> = SmallVec::new();
        let mut others: SmallVec<[Fd; 4]> = SmallVec::new();
        for (socket, fd) in &cargo.sockets {
            let identity = file::identity(*fd).ok()?;
            if entries.iter().any(|entry| entry.identity() == identity) {
                continue;
            }
            match exec::entry(socket, identity).filter(is_own) {
                Some(entry) => {
                    let first = along.added.len();
                    along.added.extend_from_slice(entry.fds());
                    let place = |fd| along.added[first..].iter().position(|added| *added == fd);
                    entries.push(entry.map_fds(|fd| Some((first + place(fd)?) as Fd))?);
                    if socket.phase() != phase::LISTENER {
                        along.connections.push(socket);
                    }
                }
                None => others.push(*fd),
            }
        }
        if !exec::pass(&others) {
            return None;
        }
        if own + along.added.len() + 1 > MOST_DESCRIPTORS {
            return None;
        }
        if !entries.is_empty() {
            along.manifest = manifest::write_carried(&entries, own, along.added.len()).ok()?;
        }
        Some(along)
    }

    /// Sends the message without waiting. `None`: it must not go as it is.
    fn send(
        &self,
        over: Fd,
        to: Trusted,
        header: &libc::msghdr,
        given: &[u8],
        flags: i32,
    ) -> Option<Result<usize>> {
        let mut bytes = given.to_vec();
        if self.manifest >= 0 {
            control::append_rights(&mut bytes, self.added.iter().copied().chain([self.manifest]));
        }
        // The kernel wants whole words.
        let mut aligned = vec![0u64; bytes.len().div_ceil(8)];
        for (word, part) in aligned.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..part.len()].copy_from_slice(part);
            *word = u64::from_ne_bytes(whole);
        }
        let message = libc::msghdr {
            msg_control: aligned.as_mut_ptr().cast(),
            msg_controllen: bytes.len(),
            ..*header
        };
        // Before the receiver can have them.
        self.hold(true);
        // SAFETY: the program's message, with control messages of ours.
        let sent = to.send(over, || unsafe { net::send_message(over, &message, flags) });
        if !matches!(sent, Some(Ok(_))) {
            self.hold(false);
        }
        sent
    }

    /// The message is one more holder of the connections in it, or no longer.
    fn hold(&self, on: bool) {
        for stream in self.connections.iter().filter_map(|socket| socket.stream()) {
            if on {
                Memory::share(stream.endpoint);
                stream.endpoint.holders.fetch_add(1, SeqCst);
            } else {
                stream.endpoint.holders.fetch_sub(1, SeqCst);
            }
        }
    }
}

/// True if what an entry's processes trust each other with was made by this user: only then a receiver takes it.
fn is_own(entry: &Entry) -> bool {
    let private = match entry {
        Entry::Connection { fds, .. } => fds[0],
        Entry::Listener { fds, .. } => fds[0],
    };
    is_made_by_us(private)
}

/// True if the memory behind `fd` was made by a process of this user; the kernel keeps that for a memfd's life.
pub(in crate::switch) fn is_made_by_us(fd: Fd) -> bool {
    file::stat(fd).is_ok_and(|found| found.st_uid == process::euid())
}
