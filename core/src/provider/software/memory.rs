//! Registered memory: which addresses requests may name, and copies to and from them.
//!
//! A copy holds the table's lock for reading and a deregistration takes it for writing, so that
//! nothing touches memory after its deregistration returned (M1, M6).

use crate::provider::interface::{Error, Result, Segment};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The registrations of one adapter.
#[derive(Default)]
pub struct Memory {
    regions: RwLock<HashMap<u32, Range<u64>>>,
    next: AtomicU32,
}

impl Memory {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<u32, Range<u64>>> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u32, Range<u64>>> {
        self.regions.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every segment lies within a registration; the sum of their lengths.
    pub fn check(&self, segments: &[Segment]) -> Result<usize> {
        let regions = self.read();
        segments.iter().try_fold(0usize, |sum, segment| {
            pointer(&regions, segment)?;
            Ok(sum + segment.length as usize)
        })
    }

    /// Hands the memory of each segment, in order, to `use_one`, while none can be deregistered.
    pub fn each(
        &self,
        segments: &[Segment],
        mut use_one: impl FnMut(*mut u8, usize) -> Result<()>,
    ) -> Result<()> {
        let regions = self.read();
        for segment in segments {
            use_one(pointer(&regions, segment)?, segment.length as usize)?;
        }
        Ok(())
    }

    /// Whether a region registers all of `range`.
    pub fn covers(&self, token: u32, range: &Range<u64>) -> bool {
        self.read().get(&token).is_some_and(|r| r.start <= range.start && range.end <= r.end)
    }

    /// The bytes of the segments, one after the other.
    pub fn gather(&self, segments: &[Segment]) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.check(segments)?);
        self.each(segments, |at, length| {
            // SAFETY: registered, so mapped; the client changes it at its own risk meanwhile.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, length) });
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Copies all of `bytes` into the segments, or nothing.
    pub fn scatter(&self, segments: &[Segment], bytes: &[u8]) -> Result<()> {
        if self.check(segments)? < bytes.len() {
            return Err(Error::BufferOverflow);
        }
        let mut rest = bytes;
        self.each(segments, |at, length| {
            let (now, later) = rest.split_at(length.min(rest.len()));
            // SAFETY: registered, so mapped and ours to write.
            unsafe { at.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            rest = later;
            Ok(())
        })
    }
}

fn pointer(regions: &HashMap<u32, Range<u64>>, segment: &Segment) -> Result<*mut u8> {
    let region = regions.get(&segment.token).ok_or(Error::LocalAccess)?;
    let end = segment.address.checked_add(segment.length.into()).ok_or(Error::LocalAccess)?;
    if segment.address < region.start || end > region.end {
        return Err(Error::LocalAccess);
    }
    Ok(segment.address as *mut u8)
}

/// A memory region over a [`Memory`].
pub struct Region {
    memory: Arc<Memory>,
    token: Mutex<Option<u32>>,
}

impl Region {
    /// Without memory.
    pub fn new(memory: &Arc<Memory>) -> Self {
        Region { memory: memory.clone(), token: Mutex::new(None) }
    }

    /// The token, if there is a registration.
    pub fn token(&self) -> Result<u32> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).ok_or(Error::InvalidParameter)
    }
}

impl crate::provider::interface::implement::MemoryRegion for Region {
    unsafe fn register(&self, address: *mut u8, length: usize) -> Result<()> {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let start = address as u64;
        let end = start.checked_add(length as u64).ok_or(Error::InvalidParameter)?;
        if token.is_some() || length == 0 || address.is_null() {
            return Err(Error::InvalidParameter);
        }
        let mut regions = self.memory.write();
        // Tokens wrap after four billion registrations; one still in use is passed over.
        let new = loop {
            let candidate = self.memory.next.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if !regions.contains_key(&candidate) {
                break candidate;
            }
        };
        regions.insert(new, start..end);
        *token = Some(new);
        Ok(())
    }

    fn deregister(&self) -> Result<()> {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let old = token.take().ok_or(Error::InvalidParameter)?;
        self.memory.write().remove(&old);
        Ok(())
    }

    fn local_token(&self) -> Result<u32> {
        self.token()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.token().is_ok() {
            let _ = crate::provider::interface::implement::MemoryRegion::deregister(self);
        }
    }
}
