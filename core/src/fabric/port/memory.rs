//! Registered buffers of one size: the library's own pools, which stay registered (M4).

use crate::fabric::frame::LARGEST;
use crate::provider::interface::client::{Adapter, MemoryRegion};
use crate::provider::interface::{Error, MemoryPiece, ProviderResult};
use crate::provider::shm::budget::{self, Cost};
use crate::sys::{file, process};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Buffers that the pool grows by.
const STEP: usize = 8;
/// Most buffers of one pool: 64 MiB.
const MOST: usize = 2048;
/// Bytes that the blocks of this process have.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Attempts to get at the pool. Its holder may stand still.
const ATTEMPTS: u32 = 1000;

/// Buffers one after the other, registered.
pub(in crate::fabric) struct Block {
    base: *mut u8,
    count: usize,
    token: u32,
    region: Option<MemoryRegion>,
}

// SAFETY: memory that no reference claims. The owner knows which thread uses which buffer.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// In a fork child: the memory is the parent's alone.
pub(in crate::fabric) fn after_fork_in_child() {
    budget::give_back(Cost::of_buffers(TAKEN.swap(0, Relaxed)));
}

impl Block {
    pub(in crate::fabric) fn new(adapter: &Adapter, count: usize) -> ProviderResult<Self> {
        let size = count * LARGEST;
        let cost = Cost::of_buffers(size);
        // A program that is short of memory finds what is left as without the library.
        budget::take(cost).map_err(|_| Error::InsufficientResources)?;
        let mapped = file::map_private(size).inspect_err(|_| budget::give_back(cost));
        let base = mapped.map_err(|_| Error::InsufficientResources)?;
        TAKEN.fetch_add(size, Relaxed);
        let mut block = Block { base, count, token: 0, region: None };
        // A fork child has no use for it, and must not have its pages copied or moved.
        // SAFETY: our own mapping.
        unsafe { file::keep_from_children(base, size) };
        let region = adapter.create_memory_region()?;
        // SAFETY: mapped until the block is dropped, which closes the region before.
        unsafe { region.register(base, size)? };
        block.token = region.local_token()?;
        block.region = Some(region);
        Ok(block)
    }

    /// A buffer.
    pub(in crate::fabric) fn buffer(&self, index: usize) -> Buffer {
        debug_assert!(index < self.count);
        // SAFETY: within the mapping.
        Buffer { at: unsafe { self.base.add(index * LARGEST) }, token: self.token }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.region = None;
        let size = self.count * LARGEST;
        // SAFETY: nothing names the memory any more.
        unsafe { file::unmap(self.base, size) };
        TAKEN.fetch_sub(size, Relaxed);
        budget::give_back(Cost::of_buffers(size));
    }
}

/// One buffer of [`LARGEST`] bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric) struct Buffer {
    /// Where it is.
    pub(in crate::fabric) at: *mut u8,
    token: u32,
}

// SAFETY: it is only a name; its holder alone uses the memory.
unsafe impl Send for Buffer {}

impl Buffer {
    /// All of it, for a request.
    pub(super) fn whole(&self) -> MemoryPiece {
        self.segment(LARGEST)
    }

    /// Its first `length` bytes, for a request.
    pub(in crate::fabric) fn segment(&self, length: usize) -> MemoryPiece {
        MemoryPiece {
            address: self.at as u64,
            length: length.min(LARGEST) as u32,
            token: self.token,
        }
    }
}

/// Buffers for sending, as many as are in use at a time.
pub(in crate::fabric) struct Pool {
    busy: AtomicBool,
    inner: UnsafeCell<Inner>,
}

#[derive(Default)]
struct Inner {
    blocks: Vec<Block>,
    /// Has room for all buffers: giving one back never allocates.
    free: Vec<Buffer>,
    closed: bool,
}

impl Inner {
    fn may_grow(&self) -> bool {
        !self.closed && self.blocks.len() * STEP < MOST
    }
}

// SAFETY: `inner` is only reached while `busy` is held.
unsafe impl Sync for Pool {}
// SAFETY: as above.
unsafe impl Send for Pool {}

impl Pool {
    pub(in crate::fabric) fn new() -> Self {
        Self { busy: AtomicBool::new(false), inner: UnsafeCell::default() }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> Option<T> {
        for _ in 0..ATTEMPTS {
            if !self.busy.swap(true, Ordering::Acquire) {
                // SAFETY: `busy` is held.
                let result = f(unsafe { &mut *self.inner.get() });
                self.busy.store(false, Ordering::Release);
                return Some(result);
            }
            process::yield_now();
        }
        None
    }

    /// Adds some buffers. Registers them while no thread has to wait for the pool.
    pub(super) fn grow(&self, adapter: &Adapter) -> ProviderResult<()> {
        let block = Block::new(adapter, STEP)?;
        let added = self.with(|inner| {
            if !inner.may_grow() {
                return Some(block);
            }
            inner.free.reserve((inner.blocks.len() + 1) * STEP);
            inner.free.extend((0..STEP).map(|i| block.buffer(i)));
            inner.blocks.push(block);
            None
        });
        // The adapter gives back, outside of the lock, what found no place.
        added.map(drop).ok_or(Error::InsufficientResources)
    }

    /// A buffer; `None`: later, or never.
    pub(in crate::fabric) fn take(
        &self,
        adapter: impl FnOnce() -> ProviderResult<Adapter>,
    ) -> Option<Buffer> {
        let (buffer, may_grow) = self.with(|inner| (inner.free.pop(), inner.may_grow()))?;
        if buffer.is_some() || !may_grow {
            return buffer;
        }
        self.grow(&adapter().ok()?).ok()?;
        self.with(|inner| inner.free.pop())?
    }

    /// No buffer is taken any more; the memory of all of them, which nothing uses.
    pub(in crate::fabric) fn close(&self) -> Vec<Block> {
        loop {
            let blocks = self.with(|inner| {
                inner.closed = true;
                inner.free.clear();
                std::mem::take(&mut inner.blocks)
            });
            if let Some(blocks) = blocks {
                return blocks;
            }
        }
    }

    /// Gives buffers back; false: later.
    pub(in crate::fabric) fn give_back(&self, buffer: Buffer) -> bool {
        let give_back = |inner: &mut Inner| {
            if !inner.closed {
                inner.free.push(buffer);
            }
        };
        self.with(give_back).is_some()
    }
}
