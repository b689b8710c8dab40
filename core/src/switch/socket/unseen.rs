//! A fork child that has nothing to show: the registry has no file of it until it has. A server that forks for each request pays
//! nothing for what nobody looks at. Knows when, not how: that is the registry's.

use super::structure::Structure;
use super::REGISTRY;
use crate::switch::policy;
use crate::sys::process;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IS_UNSEEN: AtomicBool = AtomicBool::new(false);

/// True in such a child.
#[inline]
pub(in crate::switch) fn is_unseen() -> bool {
    IS_UNSEEN.load(Relaxed)
}

/// In a fork child; `has_to_show`: what it has over from its parent is on the SAN.
pub(in crate::switch) fn after_fork_in_child(structure: &mut Structure, has_to_show: bool) {
    let Some(registry) = REGISTRY.get(structure) else { return };
    let is_unseen = !has_to_show && registry.hide_in_fork_child();
    IS_UNSEEN.store(is_unseen, Relaxed);
    if !is_unseen {
        said(registry.after_fork_in_child());
    }
}

fn said(done: Result<(), crate::registry::RegistryError>) {
    if let Err(e) = done {
        log::warn!("this process is not published: {e}");
    }
}

/// Before this process does what it is to be seen with, or what could keep it from being seen later.
#[inline]
pub fn appear() {
    if is_unseen() && !process::is_borrowed() {
        appear_within(&mut Structure::lock());
    }
}

/// The same, by who has the structure lock.
pub(super) fn appear_within(structure: &mut Structure) {
    if !is_unseen() || policy::is_confined() {
        return;
    }
    IS_UNSEEN.store(false, Relaxed);
    if let Some(registry) = REGISTRY.get(structure) {
        said(registry.appear());
    }
}
