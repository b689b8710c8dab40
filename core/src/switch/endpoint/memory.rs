//! The memory of an end of a connection: made, used again, and kept within reach.
//!
//! It lies in a memfd of its own, so that another program image can map it (exec). A mapping and its
//! descriptor cost more to make and to end than all of a connection's other system calls, so what
//! nobody but this process has mapped is used again.

use crate::fabric::Controller;
use crate::provider::shm::{Geometry, Role};
use crate::switch::endpoint::Endpoint;
use crate::switch::policy::Relation;
use crate::sys::{self, file, hidden, high_descriptors, process, Fd, PAGE};
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

const _: () = assert!(size_of::<Endpoint>() <= PAGE);

/// [`Endpoint::forks`] of an endpoint that another image may have mapped.
const SHARED: u32 = u32::MAX;

/// An endpoint's memory, mapped, and hidden descriptors by which another image maps the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The endpoint.
    pub(in crate::switch) at: *mut Endpoint,
    /// For the endpoint; -1: none.
    pub(in crate::switch) fd: Fd,
    /// For the segment; -1: none.
    pub(in crate::switch) segment: Fd,
}

/// Memories to use again, as [`Memory::pack`] packs them; zero: none.
static SPARES: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];
/// Changes before and after each fork: memory from before another value is shared for good.
static FORKS: AtomicU32 = AtomicU32::new(0);

impl Memory {
    /// A new endpoint in shared memory of its own, and within the reach of other images together
    /// with `segment`, the session's, if there is room for the descriptors.
    pub(in crate::switch) fn create(
        role: Role,
        geometry: Geometry,
        peer: Relation,
        segment: Fd,
    ) -> sys::Result<Memory> {
        let forks = FORKS.load(Ordering::SeqCst);
        let memory = match SPARES.iter().find_map(take) {
            Some(spare) => Memory {
                segment: high_descriptors::duplicate([segment]).map_or(-1, |[fd]| fd),
                ..spare
            },
            None => Self::fresh(segment)?,
        };
        // SAFETY: blank, and nobody else's.
        unsafe { Endpoint::begin(memory.at, role, geometry, peer, forks) };
        Ok(memory)
    }

    fn fresh(segment: Fd) -> sys::Result<Memory> {
        let Ok(fd) = file::sealed_memory(c"sanshim-end", PAGE) else {
            let at = file::map_shared(None, PAGE)?.cast();
            return Ok(Memory { at, fd: -1, segment: -1 });
        };
        let at = file::map_shared(Some(fd), PAGE);
        let kept = at.is_ok().then(|| high_descriptors::duplicate([fd, segment])).flatten();
        file::close(fd);
        let [fd, segment] = kept.unwrap_or([-1, -1]);
        Ok(Memory { at: at?.cast(), fd, segment })
    }

    /// Maps the memory behind a hidden descriptor, which another image left.
    pub fn of_other_image(fd: Fd, segment: Fd) -> Option<Memory> {
        if file::sealed_size(fd) != Ok(Some(PAGE as u64)) {
            return None;
        }
        let at = file::map_shared(Some(fd), PAGE).ok()?.cast();
        Some(Memory { at, fd, segment })
    }

    /// Notes that others than this process and its fork children may have it mapped from now on.
    pub fn share(endpoint: &Endpoint) {
        endpoint.forks.store(SHARED, Ordering::SeqCst);
    }

    /// An endpoint of a connection with another host.
    #[cfg(test)]
    pub(crate) fn create_far(role: Role, geometry: Geometry) -> sys::Result<Memory> {
        Self::create(role, geometry, Relation::ELSEWHERE, -1)
    }

    /// Where its processes find out who controls its link.
    ///
    /// # Safety
    /// It is not discarded as long as the result is used.
    pub(crate) unsafe fn controller<'a>(self) -> &'a Controller {
        // SAFETY: the caller's promise.
        unsafe { &(*self.at).controller }
    }

    /// The endpoint.
    ///
    /// # Safety
    /// It is not discarded as long as the result is used.
    #[cfg(test)]
    pub(crate) unsafe fn endpoint<'a>(self) -> &'a Endpoint {
        // SAFETY: the caller's promise.
        unsafe { &*self.at }
    }

    /// Ends the endpoint.
    ///
    /// # Safety
    /// Nothing in this process uses the endpoint afterwards.
    pub unsafe fn discard(mut self) {
        if self.segment >= 0 {
            hidden::close(self.segment);
            self.segment = -1;
        }
        // Who finds it where `sanctl` finds it says first that it shares it, and then looks whether it is there still.
        fence(Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe {
            if (*self.at).forks.load(Ordering::Relaxed) == FORKS.load(Ordering::SeqCst) {
                self.at.cast::<u8>().write_bytes(0, size_of::<Endpoint>());
                if SPARES.iter().any(|spare| self.put(spare)) {
                    return;
                }
            }
            self.release();
        }
    }

    /// [`discard`](Self::discard), not to be used again.
    ///
    /// # Safety
    /// As there.
    pub(in crate::switch) unsafe fn release(self) {
        // SAFETY: the caller's promise.
        unsafe { file::unmap(self.at.cast(), PAGE) };
        if self.fd >= 0 {
            hidden::close(self.fd);
        }
    }

    /// Makes it a spare there; false if there is another one.
    fn put(self, spare: &AtomicU64) -> bool {
        let (kept, relaxed) = (Ordering::Release, Ordering::Relaxed);
        spare.compare_exchange(0, self.pack(), kept, relaxed).is_ok()
    }

    /// The page's number above the descriptor plus one, which takes 20 bits (see `high_descriptors`).
    fn pack(self) -> u64 {
        (self.at as u64 >> 12) << 20 | (self.fd + 1) as u64
    }

    fn unpack(packed: u64) -> Memory {
        let at = ((packed >> 20) << 12) as *mut Endpoint;
        Memory { at, fd: (packed & 0xf_ffff) as Fd - 1, segment: -1 }
    }
}

fn take(spare: &AtomicU64) -> Option<Memory> {
    if spare.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let packed = spare.swap(0, Ordering::Acquire);
    (packed != 0).then(|| Memory::unpack(packed))
}

/// Before a fork, and after it on both sides: an endpoint that existed in between is the relatives'
/// as well.
pub(in crate::switch) fn note_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// In a fork child: the spare ones are the parent's.
pub(in crate::switch) fn forget_spares() {
    for memory in SPARES.iter().filter_map(take) {
        // SAFETY: a spare is in no use.
        unsafe { memory.release() };
    }
}

/// The program took the number of a hidden descriptor over.
pub(in crate::switch) fn forget_descriptor(fd: Fd) {
    for spare in &SPARES {
        if let Some(memory) = take(spare) {
            let memory = Memory { fd: if memory.fd == fd { -1 } else { memory.fd }, ..memory };
            if !memory.put(spare) {
                // SAFETY: a spare is in no use.
                unsafe { memory.release() };
            }
        }
    }
}

/// True if the memory behind `fd` was made by a process of this user; the kernel keeps that for a memfd's life.
pub(in crate::switch) fn is_made_by_us(fd: Fd) -> bool {
    file::stat(fd).is_ok_and(|found| found.st_uid == process::euid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::endpoint::flag;

    const GEOMETRY: Geometry = Geometry {
        buffers: 4,
        message_size: 256,
        send_buffer: 1 << 16,
        largest_message: 256,
        largest_send_buffer: 1 << 16,
    };

    fn create(role: Role) -> &'static Endpoint {
        let memory = Memory::create(role, GEOMETRY, Relation::ELSEWHERE, -1).unwrap();
        // SAFETY: mapped until it is discarded.
        unsafe { &*memory.at }
    }

    fn discard(endpoint: &'static Endpoint) {
        let memory = Memory { at: std::ptr::from_ref(endpoint).cast_mut(), fd: -1, segment: -1 };
        // SAFETY: not used afterwards.
        unsafe { memory.discard() };
    }

    #[test]
    fn an_endpoint_is_used_again_blank_unless_somebody_shares_it() {
        let first = create(Role::Connector);
        first.set(flag::RESET);
        first.holders.store(7, Ordering::Relaxed);
        first.send.tail.store(9, Ordering::Relaxed);
        discard(first);
        let second = create(Role::Acceptor);
        assert!(std::ptr::eq(first, second));
        assert_eq!((second.flags(), second.role()), (0, Role::Acceptor));
        assert_eq!(second.holders.load(Ordering::Relaxed), 1);
        assert_eq!(second.send.tail.load(Ordering::Relaxed), 0);
        let third = create(Role::Acceptor);
        Memory::share(third);
        discard(third);
        note_fork();
        discard(second);
        assert!(SPARES.iter().all(|s| s.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_spare_keeps_its_descriptor() {
        let at = 0x7f12_3456_7000_usize as *mut Endpoint;
        for fd in [-1, 0, 1024, 0xf_fffe] {
            let memory = Memory { at, fd, segment: -1 };
            assert_eq!(Memory::unpack(memory.pack()), memory);
        }
    }

    #[test]
    fn only_memory_of_that_kind_is_mapped() {
        let fd = file::sealed_memory(c"test", 2 * PAGE).unwrap();
        assert_eq!(Memory::of_other_image(fd, -1), None);
        file::close(fd);
        let fd = file::sealed_memory(c"test", PAGE).unwrap();
        let memory = Memory::of_other_image(fd, -1).unwrap();
        // SAFETY: not used afterwards.
        unsafe { memory.release() };
        file::close(fd);
    }
}
