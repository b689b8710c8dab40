//! Descriptors and processes: dup, close, fork, exit.

use super::bell;
use super::detach;
use super::endpoint::flag;
use super::epoll;
use super::exec;
use super::far;
use super::lanes;
use super::memory;
use super::native;
use super::policy;
use super::setup::{self, shared};
use super::socket::{phase, Socket};
use super::structure::Structure;
use super::table::{self, Pinned};
use super::unseen;
use crate::fabric;
use crate::provider::shm::CLOSED;
use crate::registry;
use crate::sys::{beyond, hidden, process, sock_diag, thread, Fd};
use std::sync::atomic::Ordering::SeqCst;

/// After socket gave the program a TCP socket.
pub fn created(fd: Fd) {
    if let Some(socket) = Socket::allocate(fd) {
        if !table::put_socket(fd, socket) {
            socket.remove_descriptor();
            drop(Pinned::adopt(socket));
        }
    }
}

/// Before the program closes a descriptor. A vfork child has descriptors of its own: its notes would be its parent's.
pub fn before_close(fd: Fd) {
    close_unless(fd, process::is_borrowed);
}

/// Before a descriptor of this process is closed, by close or by another taking its number.
pub fn closing(fd: Fd) {
    close_unless(fd, || false);
}

fn close_unless(fd: Fd, is_borrowed: fn() -> bool) {
    if let Some(set) = table::set(fd) {
        if !is_borrowed() {
            epoll::closing(set, fd);
        }
        return;
    }
    let Some(socket) = table::socket(fd) else { return };
    let is_plain = socket.is_plain();
    // By mistake its parent's would stay on TCP, where nobody else has it.
    let matters = !is_plain || shared::is_counted(&socket) || process::may_be_borrowed();
    if matters && is_borrowed() {
        return;
    }
    if is_plain {
        if !table::take(fd, socket.get()) {
            return;
        }
        let is_last = socket.remove_descriptor();
        if is_last && socket.is_plain() {
            // As most: nothing but TCP's own end is due, and nothing that a handler must not meet half done.
            return forget(socket);
        }
        return take_leave(Structure::lock(), socket, fd, is_last);
    }
    let structure = Structure::lock();
    // Else another thread closes the same number.
    if table::take(fd, socket.get()) {
        let is_last = socket.remove_descriptor();
        take_leave(structure, socket, fd, is_last);
    }
}

/// The last pins of this process on a socket that is TCP's: the descriptor's and the caller's.
fn forget(socket: Pinned) {
    shared::remove_holder(&socket);
    socket.set_anchor(-1);
    socket.keep().unpin_twice();
}

/// The descriptor `fd` is in the table no more; `is_last`: no other is.
fn take_leave(mut structure: Structure, socket: Pinned, fd: Fd, is_last: bool) {
    if !is_last {
        if socket.anchor() == fd {
            let mut other = None;
            table::each_socket(0, Fd::MAX - 1, |candidate, s| {
                if std::ptr::eq(s.address(), socket.address()) {
                    other = Some(candidate);
                }
            });
            if let Some(other) = other {
                socket.set_anchor(other);
            }
        }
    } else {
        epoll::forget_socket(&mut structure, socket.get());
        if let Some(prospect) = socket.guarded(&mut structure).prospect.take() {
            prospect.end(&mut structure);
        }
        shared::remove_holder(&socket);
        if !matches!(socket.phase(), phase::SAN | phase::CONNECTING) {
            // As most: nothing but TCP's own end is due.
            socket.set_anchor(-1);
            let socket = socket.keep();
            socket.unpin_within(&mut structure);
            return socket.unpin_within(&mut structure);
        }
        drop(structure);
        last_close(&socket);
        // The number may soon be another file's.
        socket.set_anchor(-1);
    }
    // The pin that came with the descriptor.
    drop(Pinned::adopt(socket.get()));
}

/// The last descriptor of this process is going. The FIN, or the reset, is the kernel's.
fn last_close(socket: &Socket) {
    let Some(stream) = socket.stream() else { return };
    if lanes::decide(socket, &stream) {
        return;
    }
    stream.settle_posted();
    let shared = socket.leave(stream.endpoint);
    if shared {
        // What the peer wants again any process can send, and the others may not look, or be dead.
        detach::look_after(socket, &stream);
    }
    if let Some(link) = stream.fabric.filter(|_| shared) {
        return far::leave_to_relatives(socket, &stream, link);
    }
    // A thread that still waits in a call on it keeps the kernel's socket open, as on TCP.
    if shared {
        return;
    }
    let sleepers = &stream.endpoint.sleepers;
    sleepers.forget_the_dead();
    if sleepers.any() {
        return;
    }
    if native::withdraw_at_end(socket) {
        return;
    }
    if detach::finish(socket, &stream) {
        return;
    }
    if let Some(link) = stream.fabric {
        return far::close(socket, &stream, link);
    }
    // Nobody of ours sleeps here any more.
    let counters = &stream.own().counters.0;
    counters.read.signal();
    counters.write.signal();
    stream.own().sending.0.finished.fetch_or(CLOSED, SeqCst);
    // A doorbell byte left on the anchor would make the kernel reset the connection.
    if !stream.endpoint.has(flag::ANCHOR_ENDED) {
        bell::drain_at_end(socket, &stream);
    }
}

/// After the program made `to` another descriptor for `from`. What `to` was before must have been
/// announced by [`closing`].
pub fn duplicated(from: Fd, to: Fd) {
    if from == to {
        return;
    }
    if let Some(set) = table::set(from) {
        return epoll::duplicated(set, to);
    }
    if let Some(socket) = table::socket(from) {
        let _structure = Structure::lock();
        socket.add_descriptor();
        table::put_socket(to, socket.get());
    }
}

/// Before dup2 puts another file at `to`.
pub fn replacing(to: Fd) {
    if hidden::is_hidden(to) {
        hidden::forget(to);
        memory::forget_descriptor(to);
        table::each_socket(0, Fd::MAX - 1, |_, socket| socket.forget_descriptor(to));
    }
    if table::is_known(to) {
        closing(to);
    }
}

/// A fork under way: the structure is locked until it is over.
pub struct Fork {
    structure: Structure,
    /// A connection is on the SAN.
    has_san: bool,
    fabric: fabric::Forking,
}

/// Before fork.
pub fn before_fork() -> Fork {
    let mut structure = Structure::lock();
    beyond::before_fork();
    memory::note_fork();
    if let Some(registry) = &mut structure.registry {
        registry.before_fork();
    }
    let mut has_san = false;
    each_shared(|socket| {
        if let Some(stream) = socket.stream() {
            stream.endpoint.holders.fetch_add(1, SeqCst);
            has_san = true;
        }
        shared::add_holder(socket);
    });
    let fabric = fabric::before_fork();
    Fork { structure, has_san, fabric }
}

/// Each socket of this process, once.
fn each_shared(mut each: impl FnMut(&Socket)) {
    table::each_socket(0, Fd::MAX - 1, |fd, socket| {
        if socket.anchor() == fd {
            each(&socket);
        }
    });
}

impl Fork {
    /// In the parent. After a fork that failed the sockets count as shared although they are not,
    /// which costs a hint to the peer at close and nothing else.
    pub fn in_parent(mut self) {
        beyond::after_fork();
        memory::note_fork();
        if let Some(registry) = &mut self.structure.registry {
            registry.after_fork_in_parent();
        }
    }

    /// In the child: its only thread is this one.
    pub fn in_child(mut self) {
        thread::forget_tid();
        beyond::after_fork();
        self.structure.adopt_after_fork();
        process::note_owner();
        policy::stay_on_tcp(false);
        memory::note_fork();
        memory::forget_spares();
        setup::after_fork_in_child(&mut self.structure);
        exec::after_fork_in_child();
        self.fabric.in_child();
        sock_diag::after_fork_in_child();
        unseen::after_fork_in_child(&mut self.structure, self.has_san);
        epoll::after_fork_in_child();
    }
}

/// When the process exits normally: what the kernel would misread is tidied up.
pub fn exiting() {
    if exec::is_confined() {
        return;
    }
    let structure = Structure::lock();
    if let Some(registry) = &structure.registry {
        registry.remove();
    }
    drop(structure);
    each_shared(|socket| {
        let Some(stream) = socket.stream() else { return shared::remove_holder(socket) };
        if let Some(link) = stream.fabric {
            return far::exiting(socket, &stream, link);
        }
        if socket.phase() != phase::SAN || lanes::decide(socket, &stream) {
            shared::remove_holder(socket);
            return;
        }
        if socket.leave(stream.endpoint) {
            detach::look_after(socket, &stream);
            return;
        }
        if !native::withdraw_at_end(socket)
            && !detach::finish(socket, &stream)
            && !stream.endpoint.has(flag::ANCHOR_ENDED)
        {
            bell::drain_at_end(socket, &stream);
            socket.statistics().set_state(registry::State::Closing);
        }
    });
    fabric::exiting();
}
