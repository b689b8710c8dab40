//! Descriptors of sockets: made, duplicated, closed, and replaced by another file. The last descriptor of a socket ends
//! its connection.

use crate::switch::anchor::switchover;
use crate::switch::anchor::watchers;
use crate::switch::back_to_tcp::{detach, limits};
use crate::switch::descriptors::link_end;
use crate::switch::descriptors::sets;
use crate::switch::endpoint::flag;
use crate::switch::setup::{self, first_segment, holders, lives};
use crate::switch::socket::structure::{Guarded, Structure};
use crate::switch::socket::table::{self, Pinned};
use crate::switch::socket::{phase, Socket};
use crate::sys::{file, hidden, jump, net, process, Fd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// After socket gave the program a TCP socket.
// Inlined at its second caller, it would make a fork child touch a page more.
#[inline(never)]
pub fn created(fd: Fd) {
    if let Some(socket) = Socket::allocate(fd) {
        enter(fd, socket);
    }
    first_segment::note_socket(fd);
    limits::check_at(fd);
}

/// A socket is connected no longer, and may be once more. It keeps its options.
pub(super) fn begins_anew(fd: Fd) {
    closing(fd);
    created(fd);
    note_options(fd);
}

/// The program may have set options that the library did not note.
pub(super) fn note_options(fd: Fd) {
    if let Some(socket) = table::socket(fd) {
        socket.has_options.store(true, Relaxed);
    }
}

/// Notes the socket of a new descriptor.
pub(super) fn enter(fd: Fd, socket: &'static Socket) {
    forget_closed(fd);
    if !table::put_socket(fd, socket) {
        socket.remove_descriptor();
        drop(Pinned::adopt(socket));
    }
}

/// A number is another file's by now: what had it before libc has closed by itself, as fclose does.
fn forget_closed(fd: Fd) {
    if !table::is_known(fd) {
        return;
    }
    if let Some(socket) = table::socket(fd).filter(|socket| socket.anchor() == fd) {
        // Nothing of it may reach the new file.
        socket.set_anchor(other_descriptor(&socket, fd).unwrap_or(-1));
    }
    closing(fd);
}

/// Another descriptor of this process for the socket.
fn other_descriptor(socket: &Pinned, than: Fd) -> Option<Fd> {
    let mut other = None;
    table::each_socket(&mut |candidate, s| {
        if candidate != than && std::ptr::eq(s.address(), socket.address()) {
            other = Some(candidate);
        }
    });
    other
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
            sets::closing(set, fd);
        }
        return;
    }
    let Some(socket) = table::socket(fd) else { return };
    let is_plain = socket.is_plain();
    // If the child closed it by mistake for its parent, the connection would stay on TCP, although no other process has
    // it.
    let matters = !is_plain || holders::is_counted(&socket) || process::may_be_borrowed();
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
        return after_removal(Structure::lock(), socket, fd, is_last);
    }
    let structure = Structure::lock();
    // Otherwise another thread closes the same number.
    if table::take(fd, socket.get()) {
        let is_last = socket.remove_descriptor();
        after_removal(structure, socket, fd, is_last);
    }
}

/// Gives back the last pins on a socket that is TCP's: the descriptor's and the caller's.
fn forget(socket: Pinned) {
    lives::note_end(&socket);
    holders::remove_holder(&socket);
    socket.set_anchor(-1);
    socket.keep().unpin_twice();
}

/// The descriptor `fd` is in the table no more; `is_last`: no other is.
fn after_removal(mut structure: Structure, socket: Pinned, fd: Fd, is_last: bool) {
    if !is_last {
        if socket.anchor() == fd {
            if let Some(other) = other_descriptor(&socket, fd) {
                socket.set_anchor(other);
            }
        }
    } else {
        watchers::forget_socket(&mut structure, socket.get());
        if let Some(negotiation) = socket.guarded(&mut structure).negotiation.take() {
            setup::end(*negotiation, &mut structure);
        }
        holders::remove_holder(&socket);
        if socket.phase() != phase::SAN {
            // As most: nothing but TCP's own end is due.
            lives::note_end(&socket);
            socket.set_anchor(-1);
            let socket = socket.keep();
            socket.unpin_within(&mut structure);
            return socket.unpin_within(&mut structure);
        }
        drop(structure);
        if !leave_to_call(&socket, fd) {
            last_close(&socket);
            // The number may soon be another file's.
            socket.set_anchor(-1);
        }
    }
    // The pin that came with the descriptor.
    drop(Pinned::adopt(socket.get()));
}

/// Leaves the socket to a call that is under way on it; false if there is none. As on TCP that goes on, and the connection ends
/// after it: a descriptor of ours keeps the kernel's socket open until then.
fn leave_to_call(socket: &Pinned, fd: Fd) -> bool {
    let Some(stream) = socket.stream().filter(|_| socket.may_be_in_other_call()) else {
        return false;
    };
    let sleepers = &stream.endpoint.sleepers;
    sleepers.forget_the_dead();
    if !jump::is_asleep() {
        sleepers.forget_own();
    }
    if !sleepers.any() && !stream.is_locked_by_the_living() {
        return false;
    }
    let Ok(kept) = file::duplicate_high(fd) else { return false };
    let _ = file::set_descriptor_flags(kept, libc::FD_CLOEXEC);
    socket.set_anchor(hidden::keep(kept));
    socket.is_closing.store(true, SeqCst);
    LEFT_TO_CALLS.get(&mut Structure::lock()).push(socket.get());
    stream.say_deaf();
    true
}

/// Sockets without a descriptor of the program's, on which calls are under way.
static LEFT_TO_CALLS: Guarded<Vec<&'static Socket>> = Guarded::new(Vec::new());

/// Runs `each` on each of them. The process exits, and does not wait for the calls.
pub(in crate::switch) fn each_left_to_calls(each: impl FnMut(&Pinned)) {
    let left: Vec<Pinned> = {
        let mut structure = Structure::lock();
        LEFT_TO_CALLS
            .get(&mut structure)
            .iter()
            .filter_map(|socket| Pinned::of_used(socket))
            .collect()
    };
    left.iter().for_each(each);
}

/// In a fork child: the calls are the parent's.
pub(in crate::switch) fn after_fork_in_child(structure: &mut Structure) {
    LEFT_TO_CALLS.get(structure).clear();
}

/// The last call on such a socket is over.
pub(in crate::switch) fn end_after_last_call(socket: &Socket) {
    LEFT_TO_CALLS.get(&mut Structure::lock()).retain(|left| !std::ptr::eq(*left, socket));
    let kept = socket.anchor();
    if socket.phase() == phase::SAN {
        last_close(socket);
    }
    socket.set_anchor(-1);
    hidden::close(kept);
}

/// The last descriptor of this process is going. The FIN, or the reset, is the kernel's.
fn last_close(socket: &Socket) {
    let Some(stream) = socket.stream() else { return };
    if switchover::complete_or_retreat(socket, &stream) {
        return;
    }
    stream.settle_posted();
    let departure = socket.stop_holding(stream.endpoint);
    let shared = departure.is_shared;
    if shared {
        // Any process can send what the peer wants again. The others may not look, or may be dead.
        detach::look_after(socket, &stream);
    }
    if shared {
        return link_end::leave_to_relatives(socket, &stream);
    }
    if detach::finish(socket, &stream) {
        return;
    }
    if stream.is_between_hosts() {
        return link_end::close(socket, &stream);
    }
    let is_over = stream.is_finished() && stream.endpoint.has(flag::SEND_SHUT);
    if is_over && net::linger(socket.anchor()) == Some(0) {
        // Over TCP both ends would have sent their FIN, and no close resets such a connection.
        let _ = net::close_in_order(socket.anchor());
    }
    // No thread of this end sleeps here any more.
    let counters = &stream.own().counters.0;
    counters.read.signal();
    counters.write.signal();
    stream.tell_actions();
    stream.say_closed();
}

/// The program made `to` another descriptor for `from`. The caller announced by [`closing`] what `to` was before.
pub fn duplicated(from: Fd, to: Fd) {
    if from == to {
        return;
    }
    if let Some(set) = table::set(from) {
        return sets::duplicated(set, to);
    }
    if let Some(socket) = table::socket(from) {
        forget_closed(to);
        let _structure = Structure::lock();
        socket.add_descriptor();
        table::put_socket(to, socket.get());
    }
}

/// Before dup2 puts another file at `to`.
pub fn replacing(to: Fd) {
    if hidden::is_hidden(to) {
        hidden::forget(to);
    }
    if table::is_known(to) {
        closing(to);
    }
}
