//! A memory region. It is registered for this process, and windows for one peer are made of it (M1, M2).

use crate::device::Device;
use crate::error::{check, last};
use rdma_sys::*;
use sanshim_core::provider::interface::{implement, Error, ProviderResult};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Region {
    device: Arc<Device>,
    memory: Mutex<Option<Registered>>,
}

struct Registered(NonNull<ibv_mr>);

// SAFETY: rdma-core's objects may be used by any thread.
unsafe impl Send for Registered {}

impl Region {
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        Region { device: device.clone(), memory: Mutex::new(None) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Registered>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The registration, if it covers all of `range`.
    pub(crate) fn covering(&self, range: &Range<u64>) -> ProviderResult<*mut ibv_mr> {
        let memory = self.lock();
        let memory = memory.as_ref().ok_or(Error::InvalidParameter)?;
        // SAFETY: live while the lock is held.
        let (start, length) =
            unsafe { ((*memory.0.as_ptr()).addr as u64, (*memory.0.as_ptr()).length) };
        if range.start < start || range.end > start + length as u64 || range.is_empty() {
            return Err(Error::InvalidParameter);
        }
        Ok(memory.0.as_ptr())
    }
}

impl implement::MemoryRegionObject for Region {
    unsafe fn register(&self, address: *mut u8, length: usize) -> ProviderResult<()> {
        let mut memory = self.lock();
        if memory.is_some() || address.is_null() || length == 0 {
            return Err(Error::InvalidParameter);
        }
        let access =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_MW_BIND;
        // SAFETY: a live domain; the memory is the caller's promise.
        let made = unsafe {
            ibv_reg_mr(self.device.domain.as_ptr(), address.cast(), length, access.0 as i32)
        };
        *memory = Some(Registered(NonNull::new(made).ok_or_else(last)?));
        Ok(())
    }

    fn deregister(&self) -> ProviderResult<()> {
        let mut memory = self.lock();
        let registered = memory.as_ref().ok_or(Error::InvalidParameter)?;
        // SAFETY: live; refused by the kernel while a window is bound to it.
        check(unsafe { ibv_dereg_mr(registered.0.as_ptr()) })?;
        *memory = None;
        Ok(())
    }

    fn local_token(&self) -> ProviderResult<u32> {
        let memory = self.lock();
        let memory = memory.as_ref().ok_or(Error::InvalidParameter)?;
        // SAFETY: live while the lock is held.
        Ok(unsafe { (*memory.0.as_ptr()).lkey })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let registered = self.lock().is_some();
        if registered && implement::MemoryRegionObject::deregister(self).is_err() {
            log::error!("verbs: a memory region is closed while memory of it is bound for a peer");
        }
    }
}
