//! Registered memory: which addresses requests may name, and copies to and from them.
//!
//! A copy counts itself in at its registration, and a deregistration waits until no copy is counted there. So nothing
//! touches memory after its deregistration returned (M1, M6). To look a registration up takes no lock: a signal handler
//! may do that, whatever it interrupted.

use super::inherited;
use crate::provider::interface::{implement, Error, MemoryPiece, ProviderResult};
use crate::sys::process::{self, SignalsHeld};
use crate::sys::user::{self, Access};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Registrations for which memory is made at a time.
const CHUNK: usize = 256;
/// So often: most registrations of an adapter are 65536.
const CHUNKS: usize = 256;

/// A registration, or the place for one.
#[derive(Default)]
struct Entry {
    /// The token that names it; zero: there is none.
    token: AtomicU32,
    /// Copies under way.
    users: AtomicU32,
    /// Parts of it that a peer can reach.
    bound: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
}

type Chunk = Box<[Entry; CHUNK]>;

/// The registrations of one adapter.
pub struct AdapterMemory {
    chunks: [OnceLock<Chunk>; CHUNKS],
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    free: Vec<usize>,
    /// Places that were ever used.
    used: usize,
    /// The upper half of the next token; not zero while it is used.
    serial: u16,
}

impl Default for AdapterMemory {
    fn default() -> Self {
        AdapterMemory { chunks: [const { OnceLock::new() }; CHUNKS], places: Mutex::default() }
    }
}

/// A registration that cannot end meanwhile.
struct Held<'a>(&'a Entry);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

impl Held<'_> {
    fn range(&self) -> Range<u64> {
        self.0.start.load(Ordering::Relaxed)..self.0.end.load(Ordering::Relaxed)
    }
}

impl AdapterMemory {
    fn entry(&self, place: usize) -> Option<&Entry> {
        self.chunks.get(place / CHUNK)?.get()?.get(place % CHUNK)
    }

    /// The registration of that token. SeqCst against [`deregister`](Self::deregister): either it
    /// waits for us or we find it gone.
    #[inline]
    fn hold(&self, token: u32) -> Option<Held<'_>> {
        let entry = self.entry((token & 0xffff) as usize)?;
        if token == 0 {
            return None;
        }
        entry.users.fetch_add(1, Ordering::SeqCst);
        let held = Held(entry);
        (entry.token.load(Ordering::SeqCst) == token).then_some(held)
    }

    /// The registration that a segment lies in.
    #[inline]
    fn hold_segment(&self, segment: &MemoryPiece) -> ProviderResult<Held<'_>> {
        let held = self.hold(segment.token).ok_or(Error::LocalAccess)?;
        let end = segment.address.checked_add(segment.length.into()).ok_or(Error::LocalAccess)?;
        let range = held.range();
        if segment.address < range.start || end > range.end {
            return Err(Error::LocalAccess);
        }
        Ok(held)
    }

    /// Whether every segment lies within a registration; the sum of their lengths.
    #[inline]
    pub fn check(&self, segments: &[MemoryPiece]) -> ProviderResult<usize> {
        segments.iter().try_fold(0usize, |sum, segment| {
            self.hold_segment(segment)?;
            Ok(sum + segment.length as usize)
        })
    }

    /// Hands the memory of each segment, in order, to `use_one`; it is not deregistered meanwhile.
    #[inline]
    pub fn each(
        &self,
        segments: &[MemoryPiece],
        mut use_one: impl FnMut(*mut u8, usize) -> ProviderResult<()>,
    ) -> ProviderResult<()> {
        for segment in segments {
            let _held = self.hold_segment(segment)?;
            use_one(segment.address as *mut u8, segment.length as usize)?;
        }
        Ok(())
    }

    /// Whether a region registers all of `range`.
    pub(crate) fn covers(&self, token: u32, range: &Range<u64>) -> bool {
        let covers = |r: Range<u64>| r.start <= range.start && range.end <= r.end;
        self.hold(token).is_some_and(|held| covers(held.range()))
    }

    /// Makes a part of a region reachable for a peer: it is not deregistered until
    /// [`unbind`](Self::unbind).
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if the region does not have all of `range`.
    pub fn bind(&self, token: u32, range: &Range<u64>) -> ProviderResult<()> {
        let held = self.hold(token).ok_or(Error::InvalidParameter)?;
        let all = held.range();
        if range.is_empty() || range.start < all.start || range.end > all.end {
            return Err(Error::InvalidParameter);
        }
        held.0.bound.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Ends one [`bind`](Self::bind).
    pub(crate) fn unbind(&self, token: u32) {
        if let Some(entry) = self.entry((token & 0xffff) as usize) {
            entry.bound.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The bytes of the segments, one after the other.
    pub(crate) fn gather(&self, segments: &[MemoryPiece]) -> ProviderResult<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.check(segments)?);
        self.each(segments, |at, length| {
            // SAFETY: registered, so mapped; the client changes it at its own risk meanwhile.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, length) });
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Copies all of `bytes` into the segments, or nothing.
    pub(crate) fn scatter(&self, segments: &[MemoryPiece], bytes: &[u8]) -> ProviderResult<()> {
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

    /// Changes the places; no signal handler that does so too interrupts it.
    fn with_places<T>(&self, change: impl FnOnce(&mut Places) -> T) -> T {
        let _held = SignalsHeld::new();
        change(&mut self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn register(&self, range: Range<u64>) -> ProviderResult<u32> {
        self.with_places(|places| self.register_at(places, range))
    }

    fn register_at(&self, places: &mut Places, range: Range<u64>) -> ProviderResult<u32> {
        let place = match places.free.pop() {
            Some(place) => place,
            None if places.used < CHUNK * CHUNKS => {
                places.used += 1;
                places.used - 1
            }
            None => return Err(Error::InsufficientResources),
        };
        let chunk = self.chunks[place / CHUNK]
            .get_or_init(|| Box::new(std::array::from_fn(|_| Entry::default())));
        // So many registrations lie between two uses of a token that nobody has the old one.
        places.serial = places.serial.wrapping_add(1).max(1);
        let token = u32::from(places.serial) << 16 | place as u32;
        let entry = &chunk[place % CHUNK];
        entry.start.store(range.start, Ordering::Relaxed);
        entry.end.store(range.end, Ordering::Relaxed);
        entry.token.store(token, Ordering::SeqCst);
        Ok(token)
    }

    fn deregister(&self, token: u32) -> ProviderResult<()> {
        let place = (token & 0xffff) as usize;
        let entry = self.entry(place).ok_or(Error::InvalidParameter)?;
        if entry.bound.load(Ordering::SeqCst) != 0 {
            return Err(Error::InvalidParameter);
        }
        entry.token.store(0, Ordering::SeqCst);
        while entry.users.load(Ordering::SeqCst) != 0 {
            process::yield_now();
        }
        // Meanwhile.
        if entry.bound.load(Ordering::SeqCst) != 0 {
            entry.token.store(token, Ordering::SeqCst);
            return Err(Error::InvalidParameter);
        }
        self.with_places(|places| places.free.push(place));
        Ok(())
    }
}

/// A memory region over a [`AdapterMemory`].
pub struct Region {
    memory: Arc<AdapterMemory>,
    /// The process it is of.
    generation: u32,
    /// Zero: nothing is registered.
    token: AtomicU32,
}

impl Region {
    /// Without memory.
    pub fn new(memory: &Arc<AdapterMemory>) -> Self {
        let generation = inherited::generation();
        Region { memory: memory.clone(), generation, token: AtomicU32::new(0) }
    }

    /// The token, if there is a registration.
    pub fn token(&self) -> ProviderResult<u32> {
        match self.token.load(Ordering::SeqCst) {
            0 => Err(Error::InvalidParameter),
            token => Ok(token),
        }
    }
}

impl implement::MemoryRegionObject for Region {
    unsafe fn register(&self, address: *mut u8, length: usize) -> ProviderResult<()> {
        let start = address as u64;
        let end = start.checked_add(length as u64).ok_or(Error::InvalidParameter)?;
        if length == 0 || address.is_null() {
            return Err(Error::InvalidParameter);
        }
        // A device pins it for reading and writing, and so finds out.
        user::check_anew(address, length, Access::Write).map_err(|_| Error::LocalAccess)?;
        let token = self.memory.register(start..end)?;
        let is_first =
            self.token.compare_exchange(0, token, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if !is_first {
            self.memory.deregister(token)?;
            return Err(Error::InvalidParameter);
        }
        Ok(())
    }

    /// [`Error::InvalidParameter`] also while a part of it is bound for a peer.
    fn deregister(&self) -> ProviderResult<()> {
        let token = match self.token.swap(0, Ordering::SeqCst) {
            0 => return Err(Error::InvalidParameter),
            token => token,
        };
        self.memory.deregister(token).inspect_err(|_| self.token.store(token, Ordering::SeqCst))
    }

    fn local_token(&self) -> ProviderResult<u32> {
        self.token()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // In a fork child it is the parent's, and copies under way there have no end here.
        let is_ours = self.generation == inherited::generation() && self.token().is_ok();
        if is_ours && implement::MemoryRegionObject::deregister(self).is_err() {
            log::error!("a memory region is closed while memory of it is bound for a peer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use implement::MemoryRegionObject;

    #[test]
    fn m1_an_old_token_names_nothing() {
        let memory = Arc::<AdapterMemory>::default();
        let mut bytes = [1u8; 64];
        let region = Region::new(&memory);
        // SAFETY: there until the end of the test.
        unsafe { region.register(bytes.as_mut_ptr(), 64) }.unwrap();
        let token = region.token().unwrap();
        let segment = MemoryPiece { address: bytes.as_ptr() as u64, length: 64, token };
        assert_eq!(memory.check(&[segment, segment]), Ok(128));
        let beyond = MemoryPiece { length: 65, ..segment };
        assert_eq!(memory.check(&[beyond]), Err(Error::LocalAccess));
        region.deregister().unwrap();
        assert_eq!(memory.check(&[segment]), Err(Error::LocalAccess));
        // SAFETY: as above.
        unsafe { region.register(bytes.as_mut_ptr(), 64) }.unwrap();
        assert_ne!(region.token().unwrap(), token);
        assert_eq!(memory.check(&[segment]), Err(Error::LocalAccess));
    }

    #[test]
    fn m2_what_is_bound_is_not_deregistered() {
        let memory = Arc::<AdapterMemory>::default();
        let mut bytes = [1u8; 64];
        let region = Region::new(&memory);
        // SAFETY: there until the end of the test.
        unsafe { region.register(bytes.as_mut_ptr(), 64) }.unwrap();
        let (token, start) = (region.token().unwrap(), bytes.as_ptr() as u64);
        assert_eq!(memory.bind(token, &(start..start + 65)), Err(Error::InvalidParameter));
        memory.bind(token, &(start..start + 64)).unwrap();
        assert_eq!(region.deregister(), Err(Error::InvalidParameter));
        assert!(memory.covers(token, &(start..start + 8)));
        memory.unbind(token);
        assert_eq!(region.deregister(), Ok(()));
    }
}
