//! rdma_cm's own context of each device, which it opens when a first identifier is bound to it, and never closes: its
//! descriptors are moved out of the program's way, closed in fork children, and closed here when the device was removed, because
//! the kernel may wait for that. Drivers for which it does not wait map memory by them; those keep it.

use rdma_sys::ibv_context;
use sanshim_core::provider::software::inherited;
use sanshim_core::sys::{file, Fd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Descriptors below are where programs look for their own.
const LOW: Fd = 100;

struct Known {
    context: NonNull<ibv_context>,
    /// Devices that were opened by it.
    users: usize,
    removed: bool,
}

// SAFETY: rdma-core's objects may be used by any thread.
unsafe impl Send for Known {}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

fn known() -> MutexGuard<'static, Vec<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors(context: NonNull<ibv_context>) -> [NonNull<Fd>; 2] {
    let at = context.as_ptr();
    // SAFETY: a live context; its fields are named, not looked at.
    unsafe {
        [
            NonNull::new_unchecked(&raw mut (*at).cmd_fd),
            NonNull::new_unchecked(&raw mut (*at).async_fd),
        ]
    }
}

/// Moves a context's descriptors out of the program's way, who may expect low numbers to be its own (select).
///
/// # Safety
/// The context is live, and no other thread uses it.
pub(crate) unsafe fn move_high(context: NonNull<ibv_context>) {
    for place in descriptors(context) {
        // SAFETY: the caller's promise; nothing but the context knows its descriptors.
        unsafe {
            let fd = place.read();
            if (0..LOW).contains(&fd) {
                place.write(file::move_high(fd));
            }
        }
    }
}

/// An identifier was bound to a device whose context is this one.
pub(crate) fn know(context: NonNull<ibv_context>) {
    let mut known = known();
    if known.iter().any(|one| one.context == context) {
        return;
    }
    // SAFETY: live as long as the process. Whoever else is bound to the device comes through here before anything
    // else is done with it.
    unsafe {
        move_high(context);
        for place in descriptors(context) {
            inherited::note_at(place);
        }
    }
    known.push(Known { context, users: 0, removed: false });
}

/// A device that was opened by one of them.
pub(crate) struct Shared(NonNull<ibv_context>);

impl Shared {
    /// By one that is [`know`]n.
    pub(crate) fn of(context: NonNull<ibv_context>) -> Self {
        let shared = Shared(context);
        shared.with(|known| known.users += 1);
        shared
    }

    /// The device was removed.
    pub(crate) fn is_removed(&self) {
        self.with(|known| known.removed = true);
    }

    fn with(&self, f: impl FnOnce(&mut Known)) {
        if let Some(one) = known().iter_mut().find(|one| one.context == self.0) {
            f(one);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut known = known();
        let Some(at) = known.iter().position(|one| one.context == self.0) else { return };
        known[at].users -= 1;
        if !known[at].removed || known[at].users > 0 {
            return;
        }
        known.swap_remove(at);
        for place in descriptors(self.0) {
            // SAFETY: rdma_cm has no identifier on the device any more. If it closes the context some day, it
            // closes no descriptor.
            let fd = unsafe { place.replace(-1) };
            inherited::forget(fd);
            file::close(fd);
        }
    }
}
