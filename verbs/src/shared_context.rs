//! rdma_cm's own context of each device. rdma_cm opens it when the first identifier is bound to the device, and as a
//! rule keeps it. Its descriptors are moved out of the program's way, and are closed in fork children. They are also
//! closed when the device was removed, because the kernel may wait for that. With drivers for which it does not wait,
//! memory is mapped by these descriptors. That memory stays mapped.

use rdma_sys::ibv_context;
use sanshim_core::provider::software::inherited;
use sanshim_core::sys::{file, Fd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Below this number programs may expect their own descriptors.
const LOW: Fd = 100;

struct Known {
    context: NonNull<ibv_context>,
    /// How many [`Shared`] there are of it.
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

/// Moves a context's descriptors out of the program's way, which may expect that low numbers are its own (select).
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

/// A context that is in use, because an identifier is bound to its device. rdma_cm may close it when none is.
pub(crate) struct Shared(NonNull<ibv_context>);

impl Shared {
    /// The context of an identifier that is bound.
    pub(crate) fn of(context: NonNull<ibv_context>) -> Self {
        let mut known = known();
        if let Some(one) = known.iter_mut().find(|one| one.context == context) {
            one.users += 1;
            return Shared(context);
        }
        // SAFETY: live until this is dropped. Every other user of the device comes through here before it does anything
        // else with the device.
        unsafe {
            move_high(context);
            for place in descriptors(context) {
                inherited::note_at(place);
            }
        }
        known.push(Known { context, users: 1, removed: false });
        Shared(context)
    }

    /// The context, which exists as long as this.
    pub(crate) fn context(&self) -> NonNull<ibv_context> {
        self.0
    }

    /// The device was removed.
    pub(crate) fn is_removed(&self) {
        if let Some(one) = known().iter_mut().find(|one| one.context == self.0) {
            one.removed = true;
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut known = known();
        let Some(at) = known.iter().position(|one| one.context == self.0) else { return };
        known[at].users -= 1;
        if known[at].users > 0 {
            return;
        }
        let was_removed = known.swap_remove(at).removed;
        for place in descriptors(self.0) {
            // SAFETY: the identifier of this is still bound.
            let fd = unsafe { place.read() };
            inherited::forget(fd);
            if was_removed {
                // So rdma_cm closes no descriptor if it closes the context some day.
                // SAFETY: as above.
                unsafe { place.write(-1) };
                file::close(fd);
            }
        }
    }
}
