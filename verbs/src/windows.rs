//! The memory windows of one queue pair. Through them only its peer can reach memory (M2).
//!
//! Windows of type 2 belong to the queue pair on which they are bound. The device refuses a request of any other queue
//! pair. They are kept for the next bind, because to make one is a system call.

use crate::device::Device;
use crate::error::{check, last};
use rdma_sys::*;
use sanshim_core::provider::interface::{Error, ProviderResult};
use std::collections::HashMap;
use std::ptr::NonNull;

#[derive(Default)]
pub(crate) struct Windows {
    free: Vec<NonNull<ibv_mw>>,
    bound: HashMap<u32, NonNull<ibv_mw>>,
}

// SAFETY: rdma-core's objects may be used by any thread.
unsafe impl Send for Windows {}

impl Windows {
    /// A window that is not bound, and the token that its next bind gives.
    pub(crate) fn take(&mut self, device: &Device) -> ProviderResult<(NonNull<ibv_mw>, u32)> {
        let window = match self.free.pop() {
            Some(window) => window,
            None => {
                // SAFETY: a live domain.
                let made =
                    unsafe { ibv_alloc_mw(device.domain.as_ptr(), ibv_mw_type::IBV_MW_TYPE_2) };
                made.and_then(NonNull::new).ok_or_else(last)?
            }
        };
        // SAFETY: a live window.
        Ok((window, unsafe { ibv_inc_rkey((*window.as_ptr()).rkey) }))
    }

    /// The window was not bound after all.
    pub(crate) fn give_back(&mut self, window: NonNull<ibv_mw>) {
        self.free.push(window);
    }

    /// The window's bind was posted.
    pub(crate) fn bound(&mut self, window: NonNull<ibv_mw>, token: u32) {
        // SAFETY: a live window, whose token changes with the bind.
        unsafe { (*window.as_ptr()).rkey = token };
        self.bound.insert(token, window);
    }

    /// The invalidation of `token` is being posted. The next bind comes after it.
    pub(crate) fn invalidated(&mut self, token: u32) -> ProviderResult<()> {
        let window = self.bound.remove(&token).ok_or(Error::InvalidParameter)?;
        self.free.push(window);
        Ok(())
    }

    /// Ends a window at once, without a request.
    pub(crate) fn end(&mut self, token: u32) -> ProviderResult<()> {
        let window = *self.bound.get(&token).ok_or(Error::InvalidParameter)?;
        // SAFETY: a live window. The device refuses the peer from then on, as with a token that never was.
        check(unsafe { ibv_dealloc_mw(window.as_ptr()) })?;
        self.bound.remove(&token);
        Ok(())
    }

    pub(crate) fn is_bound(&self, token: u32) -> bool {
        self.bound.contains_key(&token)
    }

    /// The queue pair goes. All that was bound goes before it.
    pub(crate) fn close(&mut self) {
        for window in self.free.drain(..).chain(self.bound.drain().map(|(_, window)| window)) {
            // SAFETY: a live window that nothing uses any more.
            unsafe { ibv_dealloc_mw(window.as_ptr()) };
        }
    }
}
