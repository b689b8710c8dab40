//! What happens to a process's sockets as a whole: over a fork, and when the process exits.
//!
//! This module calls each room's own part of that, in order. It does not know what is in a socket.

use crate::fabric;
use crate::registry;
use crate::switch::anchor::switchover;
use crate::switch::back_to_tcp::detach;
use crate::switch::descriptors::lifecycle;
use crate::switch::descriptors::link_end;
use crate::switch::descriptors::sets;
use crate::switch::endpoint::flag;
use crate::switch::endpoint::memory;
use crate::switch::handing_on::bring_back;
use crate::switch::policy;
use crate::switch::setup;
use crate::switch::setup::holders;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table;
use crate::switch::socket::unpublished;
use crate::switch::socket::{phase, Socket, REGISTRY};
use crate::sys::{process, sock_diag, thread};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

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
    memory::note_fork();
    if let Some(registry) = REGISTRY.get(&mut structure) {
        registry.before_fork();
    }
    let mut has_san = false;
    each_shared(|socket| {
        if let Some(stream) = socket.stream() {
            stream.endpoint.holders.fetch_add(1, SeqCst);
            has_san = true;
        }
        // Either process may set some, and the other one does not hear of it.
        socket.has_options.store(true, Relaxed);
        holders::add_holder(socket);
    });
    let fabric = fabric::before_fork();
    Fork { structure, has_san, fabric }
}

/// Each socket of this process, once.
fn each_shared(mut each: impl FnMut(&Socket)) {
    table::each_socket(&mut |fd, socket| {
        if socket.anchor() == fd {
            each(&socket);
        }
    });
}

impl Fork {
    /// In the parent. Whether there is a child is not known yet: see [`without_other`].
    pub fn in_parent(mut self) {
        memory::note_fork();
        if let Some(registry) = REGISTRY.get(&mut self.structure) {
            registry.after_fork_in_parent();
        }
    }

    /// In the child: its only thread is this one.
    pub fn in_child(mut self) {
        thread::forget_tid();
        self.structure.adopt_after_fork();
        process::note_owner();
        policy::stay_on_tcp(false);
        memory::note_fork();
        memory::forget_spares();
        setup::after_fork_in_child(&mut self.structure);
        bring_back::after_fork_in_child();
        each_shared(holders::name_child);
        self.fabric.in_child();
        sock_diag::after_fork_in_child();
        unpublished::after_fork_in_child(&mut self.structure, self.has_san);
        lifecycle::after_fork_in_child(&mut self.structure);
        sets::after_fork_in_child();
    }
}

/// After a fork of which only this process is left: it failed, or the parent is gone without a word.
pub fn without_other() {
    let _structure = Structure::lock();
    each_shared(|socket| {
        if let Some(stream) = socket.stream() {
            holders::take_one(&stream.endpoint.holders);
        }
        holders::remove_added(socket);
    });
}

/// When the process exits normally: what the kernel would misread is tidied up.
pub fn exiting() {
    if policy::is_confined() {
        return;
    }
    let mut structure = Structure::lock();
    if let Some(registry) = REGISTRY.get(&mut structure) {
        registry.remove();
    }
    setup::exiting(&mut structure);
    drop(structure);
    each_shared(leave);
    lifecycle::each_left_to_calls(|socket| leave(socket));
    fabric::exiting();
}

/// The process exits with this socket.
fn leave(socket: &Socket) {
    let Some(stream) = socket.stream() else { return holders::remove_holder(socket) };
    let is_tcps = matches!(socket.phase(), phase::TCP | phase::ENTERING);
    if is_tcps {
        holders::remove_holder(socket);
    }
    // A peer on another host may have to hear how it went back.
    if (is_tcps && !stream.is_between_hosts()) || switchover::complete_or_retreat(socket, &stream) {
        return holders::remove_holder(socket);
    }
    if stream.is_between_hosts() {
        return link_end::exiting(socket, &stream);
    }
    if socket.phase() != phase::SAN {
        return holders::remove_holder(socket);
    }
    if socket.stop_holding(stream.endpoint).is_shared {
        detach::look_after(socket, &stream);
        return;
    }
    if detach::finish(socket, &stream) {
        return;
    }
    if !stream.endpoint.has(flag::ANCHOR_ENDED) {
        registry::set_state(socket.statistics(), registry::State::Closing);
    }
    // A peer that does not sleep asks the kernel at its next call.
    stream.tell_actions();
    stream.say_closed();
}
