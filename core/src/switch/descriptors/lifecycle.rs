//! Descriptors and processes: dup, close, fork, exit.

use crate::provider::shm::CLOSED;
use crate::switch::anchor::lanes;
use crate::switch::anchor::native;
use crate::switch::anchor::watchers;
use crate::switch::back_to_tcp::detach;
use crate::switch::descriptors::link_end;
use crate::switch::descriptors::sets;
use crate::switch::endpoint::flag;
use crate::switch::endpoint::memory;
use crate::switch::setup;
use crate::switch::setup::holders;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::socket::{phase, Socket};
use crate::switch::waiting::ring;
use crate::sys::{hidden, Fd};
use std::sync::atomic::Ordering::SeqCst;

/// After socket gave the program a TCP socket.
pub fn created(fd: Fd) {
    let mut structure = Structure::lock();
    if let Some(socket) = Socket::allocate(&mut structure, fd) {
        if !table::put_socket(fd, socket) {
            drop(structure);
            socket.remove_descriptor();
            drop(Pinned::adopt(socket));
        }
    }
}

/// Before a descriptor is closed, by close or by another taking its number.
pub fn closing(fd: Fd) {
    if let Some(set) = table::set(fd) {
        return sets::closing(set, fd);
    }
    let Some(socket) = table::socket(fd) else { return };
    let mut structure = Structure::lock();
    if !table::socket(fd).is_some_and(|now| std::ptr::eq(now.address(), socket.address())) {
        // Another thread closes the same number.
        return;
    }
    table::clear(fd);
    if !socket.remove_descriptor() {
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
        watchers::forget_socket(&mut structure, socket.get());
        if let Some(prospect) = socket.guarded(&mut structure).prospect.take() {
            setup::end(*prospect, &mut structure);
        }
        holders::remove_holder(&socket);
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
        return link_end::leave_to_relatives(socket, &stream, link);
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
        return link_end::close(socket, &stream, link);
    }
    // Nobody of ours sleeps here any more.
    let counters = &stream.own().counters.0;
    counters.read.signal();
    counters.write.signal();
    stream.own().sending.0.finished.fetch_or(CLOSED, SeqCst);
    // A doorbell byte left on the anchor would make the kernel reset the connection.
    if !stream.endpoint.has(flag::ANCHOR_ENDED) {
        ring::drain_at_end(socket, &stream);
    }
}

/// After the program made `to` another descriptor for `from`. What `to` was before must have been
/// announced by [`closing`].
pub fn duplicated(from: Fd, to: Fd) {
    if from == to {
        return;
    }
    if let Some(set) = table::set(from) {
        return sets::duplicated(set, to);
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
