//! A fork child that has nothing on the SAN has no registry file until it needs one. So a server that forks for each
//! request does not pay for a file that nobody looks at. This module knows when that is, and the registry knows how the
//! file is made.

use super::structure::Structure;
use super::REGISTRY;
use crate::switch::policy;
use crate::sys::process;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IS_UNPUBLISHED: AtomicBool = AtomicBool::new(false);

/// True in such a child, which has no registry file.
#[inline]
pub(in crate::switch) fn is_unpublished() -> bool {
    IS_UNPUBLISHED.load(Relaxed)
}

/// In a fork child; `has_san`: what it has over from its parent is on the SAN.
pub(in crate::switch) fn after_fork_in_child(structure: &mut Structure, has_san: bool) {
    let Some(registry) = REGISTRY.get(structure) else { return };
    let is_unpublished = !has_san && registry.hide_in_fork_child();
    IS_UNPUBLISHED.store(is_unpublished, Relaxed);
    if !is_unpublished {
        warn_if_unpublished(registry.after_fork_in_child());
    }
}

fn warn_if_unpublished(done: Result<(), crate::registry::RegistryError>) {
    if let Err(e) = done {
        log::warn!("this process is not published: {e}");
    }
}

/// Publishes this process: before it does what `sanctl` is to show, or what could keep it from being published later.
#[inline]
pub fn publish() {
    // A child of a confined process stays so, and makes no system call for it.
    if is_unpublished() && !policy::is_confined() && !process::is_borrowed() {
        publish_within(&mut Structure::lock());
    }
}

/// The same, called by a thread that has the structure lock.
pub(super) fn publish_within(structure: &mut Structure) {
    if !is_unpublished() || policy::is_confined() {
        return;
    }
    IS_UNPUBLISHED.store(false, Relaxed);
    if let Some(registry) = REGISTRY.get(structure) {
        warn_if_unpublished(registry.appear());
    }
}
