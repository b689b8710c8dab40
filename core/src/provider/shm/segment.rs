//! The segment of a connection as a process has it. This module makes it or maps it, checks it, and hands out its
//! parts.

use super::bells::Bells;
use super::budget::{self, Cost};
use super::exchange::Exchange;
use super::layout::{Geometry, Head, SegmentError, MAGIC, MOST_BUFFERS, VERSION};
use super::send_buffer::SendBuffer;
use super::side::Side;
use super::slot::MessageSlot;
use crate::session::{Agreement, AgreementState, Role};
use crate::sys::{self, file, sealed, Fd, PAGE};
use std::sync::atomic::Ordering;

/// A mapped segment. Copies refer to the same mapping, which [`Segment::unmap`] ends.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    base: *mut u8,
    geometry: Geometry,
    /// Offsets that follow from the geometry: of the connector's message buffers of the first size, by the lowest
    /// bits of the sequence number, and of the large parts.
    slots: [u32; MOST_BUFFERS as usize],
    large: [usize; 3],
    bells: Bells,
    /// Of its memory, which both ends have: on this host no other has it meanwhile.
    inode: u64,
}

// SAFETY: all shared parts are atomics or raw bytes that are only copied.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    fn new(base: *mut u8, geometry: Geometry, inode: u64) -> Self {
        let pairs = geometry.pairs_offset();
        let slot = |sequence| geometry.slot_offset(pairs, Role::Connector, sequence as u32) as u32;
        Self {
            base,
            geometry,
            slots: std::array::from_fn(slot),
            large: geometry.large_offsets(),
            bells: Bells::NONE,
            inode,
        }
    }

    /// A new segment, mapped, with the descriptor that the peer needs to map it. Its buffers are smaller where this process may
    /// have little.
    pub(crate) fn create(geometry: Geometry) -> Result<(Self, Fd), SegmentError> {
        let geometry = geometry.check()?.within(budget::of_memory().1);
        let cost = Cost::of(geometry);
        budget::take(cost).map_err(SegmentError::System)?;
        Self::make(geometry).inspect_err(|_| budget::give_back(cost))
    }

    fn make(geometry: Geometry) -> Result<(Self, Fd), SegmentError> {
        let fd = sealed::create(c"sanshim", geometry.total()).map_err(SegmentError::System)?;
        let base = match file::map_shared(Some(fd), geometry.total()) {
            Ok(base) => base,
            Err(e) => {
                file::close(fd);
                return Err(SegmentError::System(e));
            }
        };
        // `sanctl` does not show a number that the kernel does not tell.
        let inode = file::identity(fd).map_or(0, |(_, inode)| inode);
        let segment = Self::new(base, geometry, inode);
        if file::is_overcommit_strict() {
            segment.provide_all_small().map_err(|e| {
                file::close(fd);
                // SAFETY: no other thread has seen it.
                unsafe { file::unmap(base, geometry.total()) };
                SegmentError::System(e)
            })?;
        }
        let head = segment.head();
        head.version.store(VERSION, Ordering::Relaxed);
        head.buffers.store(geometry.buffers, Ordering::Relaxed);
        head.message_size.store(geometry.message_size, Ordering::Relaxed);
        head.send_buffer.store(geometry.send_buffer, Ordering::Relaxed);
        head.largest_message.store(geometry.largest_message, Ordering::Relaxed);
        head.largest_send_buffer.store(geometry.largest_send_buffer, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        Ok((segment, fd))
    }

    /// Makes sure that there is memory for all that is used without a resize.
    ///
    /// # Errors
    /// ENOMEM, or whatever the kernel says.
    fn provide_all_small(&self) -> sys::Result<()> {
        // SAFETY: within the mapping, whose large parts come last; populating changes no content.
        unsafe { file::populate(self.base, self.large[0]) }
    }

    /// Maps a segment that the peer created. Its size is sealed and matches its geometry, so that
    /// no access can fault; the geometry is read once.
    pub(crate) fn attach(fd: Fd) -> Result<Self, SegmentError> {
        let sealed = sealed::stat(fd).map_err(SegmentError::System)?;
        let (size, inode) =
            match sealed.map(|memory| (usize::try_from(memory.st_size), memory.st_ino)) {
                Some((Ok(size), inode)) if size >= PAGE => (size, inode),
                _ => return Err(SegmentError::NotASegment),
            };
        let base = file::map_shared(Some(fd), size).map_err(SegmentError::System)?;
        // SAFETY: a page is mapped at `base`, and Head fits in it (asserted below).
        let head = unsafe { &*base.cast::<Head>() };
        let checked = (|| {
            if head.magic.load(Ordering::Acquire) != MAGIC {
                return Err(SegmentError::NotASegment);
            }
            let version = head.version.load(Ordering::Relaxed);
            if version != VERSION {
                return Err(SegmentError::Version(version));
            }
            let geometry = Geometry {
                buffers: head.buffers.load(Ordering::Relaxed),
                message_size: head.message_size.load(Ordering::Relaxed),
                send_buffer: head.send_buffer.load(Ordering::Relaxed),
                largest_message: head.largest_message.load(Ordering::Relaxed),
                largest_send_buffer: head.largest_send_buffer.load(Ordering::Relaxed),
            }
            .check()?;
            if geometry.total() != size {
                return Err(SegmentError::Geometry);
            }
            Ok(geometry)
        })();
        let taken = checked.and_then(|geometry| {
            let segment = Self::new(base, geometry, inode);
            budget::take(Cost::of(geometry)).map(|()| segment).map_err(|e| {
                // The peer need not wait.
                segment.agreement().decide(AgreementState::Refused);
                SegmentError::System(e)
            })
        });
        match taken {
            Ok(segment) => Ok(segment),
            Err(e) => {
                // SAFETY: `head` is not used any more.
                unsafe { file::unmap(base, size) };
                Err(e)
            }
        }
    }

    /// The same with the bells of its two ends, which go with it.
    pub(crate) fn with_bells(self, bells: Bells) -> Self {
        Self { bells, ..self }
    }

    /// The inode of its memory, which is the same at both ends and no other segment's; 0 if that is not known.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// The bells of its two ends.
    #[inline]
    pub(crate) fn bells(&self) -> Bells {
        self.bells
    }

    /// Ends the mapping, and closes the bells.
    ///
    /// # Safety
    /// No copy of this segment is used afterwards.
    pub(crate) unsafe fn unmap(self) {
        self.bells.close();
        // SAFETY: the caller's promise.
        unsafe { file::unmap(self.base, self.geometry.total()) }
        budget::give_back(self.cost());
    }

    /// What it takes of this process's [budget], apart from buffers that grew.
    pub(crate) fn cost(&self) -> Cost {
        Cost::of(self.geometry)
    }

    fn head(&self) -> &Head {
        // SAFETY: `base` maps at least a page that begins with a Head of atomics.
        unsafe { &*self.base.cast::<Head>() }
    }

    /// All of it, as a hostile peer can write it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn words(&self) -> &[std::sync::atomic::AtomicU32] {
        // SAFETY: the mapping is as large, and its parts are atomics or raw bytes that are only copied.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.geometry.total() / 4) }
    }

    /// The division of the segment, as checked when it was mapped.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What `role` publishes.
    #[inline]
    pub(crate) fn side(&self, role: Role) -> &Side {
        &self.head().sides[role as usize]
    }

    /// Says which ends use the session.
    pub(crate) fn agreement(&self) -> &Agreement {
        &self.head().joining.0.agreement
    }

    /// What the ends say to prove that they have one connection.
    pub(crate) fn exchange(&self) -> &Exchange {
        &self.head().joining.0.exchange
    }

    /// The message buffer for `sequence` in the direction that `sender` sends, or the large one after a resize (A9).
    #[inline(always)]
    pub(crate) fn slot(&self, sender: Role, sequence: u32, large: bool) -> MessageSlot {
        let geometry = &self.geometry;
        let (offset, size) = if large {
            let offset = geometry.large_slot_offset(self.large[0], sender, sequence);
            (offset, geometry.largest_message)
        } else {
            let connectors = self.slots[(sequence % MOST_BUFFERS) as usize] as usize;
            let size = geometry.message_size;
            (connectors + sender as usize * size as usize, size)
        };
        // SAFETY: within the mapping and aligned, whatever the sequence number; a checked geometry's buffers are
        // larger than a header.
        unsafe { MessageSlot::new(self.base.add(offset), size) }
    }

    /// The send buffer of the direction that `sender` sends, or the large one it may change to.
    #[inline]
    pub(crate) fn send_buffer(&self, sender: Role, large: bool) -> SendBuffer {
        let geometry = &self.geometry;
        let (offset, size) = if large {
            let size = geometry.largest_send_buffer;
            (self.large[1] + sender as usize * size as usize, size)
        } else {
            (geometry.send_buffer_offset(sender), geometry.send_buffer)
        };
        // SAFETY: the ring of `size` bytes lies within the mapping.
        unsafe { SendBuffer::new(self.base.add(offset), size) }
    }

    /// Makes sure that there is memory for `bytes` of the large messages or the large send buffer of
    /// `sender`'s direction (A9): without it a later access would end the process.
    ///
    /// # Errors
    /// ENOMEM, or whatever the kernel says.
    pub(crate) fn provide(&self, sender: Role, part: Part) -> sys::Result<()> {
        let geometry = &self.geometry;
        let offsets = self.large;
        let (offset, length) = match part {
            Part::Messages => {
                let part = geometry.large_messages_bytes();
                (offsets[0] + sender as usize * part, part)
            }
            Part::SendBuffer => {
                let part = geometry.largest_send_buffer as usize;
                (offsets[1] + sender as usize * part, part)
            }
        };
        budget::take_growth(length)?;
        // SAFETY: within the mapping; populating changes no content.
        let provided = unsafe { file::populate(self.base.add(offset), length) };
        provided.inspect_err(|_| budget::give_back(Cost::of_growth(length)))
    }

    /// Bytes of a part that is used only after a resize, for one direction.
    pub(crate) fn bytes_of(&self, part: Part) -> u64 {
        match part {
            Part::Messages => self.geometry.large_messages_bytes() as u64,
            Part::SendBuffer => self.geometry.largest_send_buffer.into(),
        }
    }

    /// Gives back the memory of both send buffers of `sender`'s direction. The receiver has read all of their bytes.
    pub(crate) fn free_send_buffers(&self, sender: Role) {
        if file::is_overcommit_strict() {
            return;
        }
        for large in [false, true] {
            let ring = self.send_buffer(sender, large);
            // SAFETY: within the mapping, and no thread needs the bytes.
            unsafe { file::free(ring.stretch(0, 1).at(), ring.size() as usize) };
        }
        budget::give_back(Cost::of_growth(self.geometry.largest_send_buffer as usize));
    }
}

/// A part of a segment that is used only after a resize (A9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The large message buffers.
    Messages,
    /// The large send buffer.
    SendBuffer,
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        buffers: 16,
        message_size: 1536,
        send_buffer: 1 << 16,
        largest_message: 4096,
        largest_send_buffer: 1 << 17,
    };

    #[test]
    fn a_segment_attaches_with_the_creators_geometry() {
        let (made, fd) = Segment::create(GEOMETRY).unwrap();
        let seen = Segment::attach(fd).unwrap();
        assert_eq!(seen.geometry(), GEOMETRY);
        assert_eq!((seen.inode(), made.inode()), (file::stat(fd).unwrap().st_ino, seen.inode()));
        assert!(made.agreement().decide(AgreementState::Taken));
        assert!(!seen.agreement().decide(AgreementState::Withdrawn));
        assert_eq!(seen.agreement().state(), AgreementState::Taken);
        file::close(fd);
        // SAFETY: neither is used again.
        unsafe {
            made.unmap();
            seen.unmap();
        }
    }

    #[test]
    fn with_strict_overcommit_no_page_is_touched_first_in_use() {
        let (segment, fd) = Segment::create(GEOMETRY).unwrap();
        let given = || file::stat(fd).unwrap().st_blocks as usize * 512;
        assert!(given() < segment.large[0]);
        segment.provide_all_small().unwrap();
        assert!(given() >= segment.large[0] && given() < segment.large[1]);
        file::close(fd);
        // SAFETY: it is not used again.
        unsafe { segment.unmap() };
    }

    #[test]
    fn a_segment_is_left_out_of_core_dumps() {
        let (segment, fd) = Segment::create(GEOMETRY).unwrap();
        let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:x}-", segment.base as usize);
        let own = mappings.split_once(&format!("\n{begins}")).unwrap().1;
        let flags = own.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
        file::close(fd);
        // SAFETY: it is not used again.
        unsafe { segment.unmap() };
    }

    #[test]
    fn what_is_not_a_sealed_segment_is_refused() {
        let not_memory = file::eventfd(0).unwrap();
        assert!(Segment::attach(not_memory).is_err());
        file::close(not_memory);
        let blank = sealed::create(c"blank", PAGE).unwrap();
        assert_eq!(Segment::attach(blank).err(), Some(SegmentError::NotASegment));
        file::close(blank);
    }

    #[test]
    fn hostile_geometry_is_refused() {
        let (made, fd) = Segment::create(GEOMETRY).unwrap();
        for hostile in [0, 3, 128, u32::MAX] {
            made.head().buffers.store(hostile, Ordering::Relaxed);
            assert_eq!(Segment::attach(fd).err(), Some(SegmentError::Geometry), "{hostile}");
        }
        made.head().buffers.store(32, Ordering::Relaxed);
        assert_eq!(Segment::attach(fd).err(), Some(SegmentError::Geometry));
        made.head().version.store(VERSION + 1, Ordering::Relaxed);
        assert_eq!(Segment::attach(fd).err(), Some(SegmentError::Version(VERSION + 1)));
        file::close(fd);
        // SAFETY: not used again.
        unsafe { made.unmap() };
    }
}
