//! Connections that another program gets: over exec, by posix_spawn, in a message.
//!
//! A program image knows nothing of a session and would take doorbells for data. So the connection
//! goes back to TCP before (D1), all that was not read yet included.

use super::detach;
use super::socket::phase;
use super::table::{self, Pinned};
use super::{is_borrowed, owner};
use crate::sys::{file, hidden, time, Fd};
use smallvec::SmallVec;

/// What [`before_exec`] changed, to be put back if the exec fails.
pub struct Exec {
    /// Descriptors made close-on-exec, and what keeps their sockets open beyond the exec.
    kept_back: SmallVec<[(Fd, Fd); 16]>,
}

/// How often, with a pause (ns), it is tried again where something is under way.
const ATTEMPTS: u32 = 200;
const PAUSE: u64 = 1_000_000;

/// Before exec: every connection that the new image would have goes back to TCP. Changes only what
/// the processes of the connection share: the caller may be a vfork child. `duplicated` are further
/// descriptors that the image gets (by posix_spawn's file actions).
///
/// A connection that cannot go back any more is kept from the image, which finds that out at once
/// (EBADF), and held open, as it would be on TCP.
pub fn before_exec(duplicated: &[Fd]) -> Exec {
    let mut exec = Exec { kept_back: SmallVec::new() };
    let ours = Ours::collect();
    if ours.0.is_empty() {
        return exec;
    }
    let mut found: SmallVec<[Fd; 64]> = SmallVec::from_slice(duplicated);
    let _ = file::each_open(|fd| {
        if file::descriptor_flags(fd).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0) {
            found.push(fd);
        }
    });
    let found: SmallVec<[(Fd, &Pinned); 16]> =
        found.into_iter().filter_map(|fd| Some((fd, ours.find(fd)?))).collect();
    // All of them before any goes: both ends of a connection may be among them.
    for (_, socket) in &found {
        if let Some(stream) = socket.stream() {
            detach::abandon(socket, &stream);
        }
    }
    for (fd, socket) in found {
        if !give(socket, fd) && !duplicated.contains(&fd) {
            exec.keep_back(fd);
        }
    }
    ours.follow();
    exec
}

/// Before a descriptor goes to another process: true if that may use it. False: what it refers to
/// is on the SAN, and has to stay there.
pub fn pass(fd: Fd) -> bool {
    table::san(fd).is_none_or(|socket| {
        let given = give(&socket, fd);
        Ours::collect().follow();
        given
    })
}

/// The connections of this process that are on the SAN, with their sockets' identities.
struct Ours(SmallVec<[(Pinned, (u64, u64)); 16]>);

impl Ours {
    fn collect() -> Self {
        let mut all = SmallVec::new();
        table::each_socket(0, Fd::MAX - 1, |fd, socket| {
            if socket.phase() == phase::SAN && socket.anchor() == fd {
                // In a vfork child the number may be another file's by now.
                if let Ok(identity) = file::identity_in(owner(), fd) {
                    all.push((socket, identity));
                }
            }
        });
        Self(all)
    }

    /// The other ends that are in this process follow at once: its only thread may be about to wait
    /// for what they are to send again.
    fn follow(&self) {
        for (socket, _) in self.0.iter().filter(|_| !is_borrowed()) {
            if let Some(stream) = socket.stream() {
                detach::look_after(socket, &stream);
            }
        }
    }

    fn find(&self, fd: Fd) -> Option<&Pinned> {
        if hidden::is_hidden(fd) || !file::is_socket(fd) {
            return None;
        }
        let identity = file::identity(fd).ok()?;
        self.0.iter().find(|(_, of)| *of == identity).map(|(socket, _)| socket)
    }
}

/// Brings a connection back to TCP for a program that can not read from the segment.
fn give(socket: &Pinned, fd: Fd) -> bool {
    for _ in 0..ATTEMPTS {
        if socket.phase() != phase::SAN {
            return true;
        }
        let Some(stream) = socket.stream() else { return true };
        if detach::abandon(socket, &stream) && detach::hand_over(socket, &stream, fd) {
            if !is_borrowed() {
                detach::look_after(socket, &stream);
            }
            return true;
        }
        if !detach::is_under_way(&stream) {
            break;
        }
        time::sleep(PAUSE);
    }
    log::error!("fd {fd}: cannot go back to TCP, so no other program gets it");
    false
}

impl Exec {
    fn keep_back(&mut self, fd: Fd) {
        let flags = file::descriptor_flags(fd).unwrap_or(libc::FD_CLOEXEC);
        let holder = file::duplicate_high(fd).unwrap_or(-1);
        let _ = file::set_descriptor_flags(fd, flags | libc::FD_CLOEXEC);
        self.kept_back.push((fd, holder));
    }

    /// exec failed, or (posix_spawn) it was another process that made it.
    pub fn undo(self) {
        for (fd, holder) in &self.kept_back {
            file::close(*holder);
            if let Ok(flags) = file::descriptor_flags(*fd) {
                let _ = file::set_descriptor_flags(*fd, flags & !libc::FD_CLOEXEC);
            }
        }
    }
}
