//! Layout of a connection's segment.
//!
//! A connection made for one request touches two pages. One has the head, the buffers of both
//! directions' second messages (the first with data) and the beginning of the connector's send
//! buffer (what is sent before there is credit). The other begins with the buffers of the opening
//! messages; that of the connector's third, which the acceptor looks for, follows.

use super::side::{Line, Side};
use super::slot::Slot;
use crate::sys::{self, file, Fd, PAGE};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"sanshim\x01");
/// Version of the segment's layout and of the session protocol in it.
const VERSION: u32 = 11;

/// Which end of the connection a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It called connect.
    Connector = 0,
    /// It called accept.
    Acceptor = 1,
}

impl Role {
    /// The other end.
    pub fn peer(self) -> Self {
        match self {
            Role::Connector => Role::Acceptor,
            Role::Acceptor => Role::Connector,
        }
    }
}

/// How a segment is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Message buffers per direction: 4 to 64, a power of two.
    pub buffers: u32,
    /// Bytes of a message buffer with its header: 256 to 65536, a multiple of 64.
    pub message_size: u32,
    /// Bytes of the send buffer per direction: 64 KiB to 64 MiB, a power of two.
    pub send_buffer: u32,
    /// Most bytes of a message buffer after a resize (A9), as `message_size`, and at least that.
    pub largest_message: u32,
    /// Bytes of the send buffer that a streaming direction changes to, as `send_buffer`, and at
    /// least that.
    pub largest_send_buffer: u32,
}

/// Bytes between large message buffers: messages that fill a part of theirs lie in all of a cache's sets.
const SKEW: usize = PAGE + 64;
/// Most message buffers per direction.
const MOST_BUFFERS: u32 = 64;

impl Geometry {
    /// Refuses what does not fit the documented ranges.
    pub fn check(self) -> Result<Self, SegmentError> {
        let fits = (4..=MOST_BUFFERS).contains(&self.buffers)
            && self.buffers.is_power_of_two()
            && [self.message_size, self.largest_message]
                .iter()
                .all(|size| (256..=65536).contains(size) && size.is_multiple_of(64))
            && [self.send_buffer, self.largest_send_buffer]
                .iter()
                .all(|size| (1 << 16..=1 << 26).contains(size) && size.is_power_of_two())
            && self.message_size <= self.largest_message
            && self.send_buffer <= self.largest_send_buffer;
        if fits {
            Ok(self)
        } else {
            Err(SegmentError::Geometry)
        }
    }

    /// Where the message buffer for `sequence` lies in the segment; `pairs` is
    /// [`pairs_offset`](Self::pairs_offset).
    #[inline]
    fn slot_offset(self, pairs: usize, sender: Role, sequence: u32) -> usize {
        let size = self.message_size as usize;
        let last = self.buffers - 1;
        let index = sequence.wrapping_sub(2) & last;
        // The pairs' order: 2, send buffers, 1, 3, 4, ...
        let pair = if index == 0 {
            size_of::<Head>()
        } else if index == last {
            pairs
        } else {
            pairs + 2 * index as usize * size
        };
        pair + sender as usize * size
    }

    /// Where all pairs of message buffers but the first begin: on a page of their own.
    #[inline]
    fn pairs_offset(self) -> usize {
        let send_buffers = self.send_buffer_offset(Role::Connector) + 2 * self.send_buffer as usize;
        send_buffers.next_multiple_of(PAGE)
    }

    #[inline]
    fn send_buffer_offset(self, sender: Role) -> usize {
        let first = size_of::<Head>() + 2 * self.message_size as usize;
        first + sender as usize * self.send_buffer as usize
    }

    fn large_messages_bytes(self) -> usize {
        let stride = self.largest_message as usize + SKEW;
        (self.buffers as usize * stride).next_multiple_of(PAGE)
    }

    /// Where the message buffer of `size` bytes for `sequence` lies after a resize (A9); `messages` is where the large
    /// ones begin.
    #[inline]
    fn large_slot_offset(self, messages: usize, sender: Role, sequence: u32, size: u32) -> usize {
        let index = (sequence & (self.buffers - 1)) as usize;
        let stride = size.min(self.largest_message) as usize + SKEW;
        messages + sender as usize * self.large_messages_bytes() + index * stride
    }

    /// Where the parts begin that are used only after a resize (A9): large messages, large send
    /// buffers, end. A part nobody touches costs no memory.
    fn large_offsets(self) -> [usize; 3] {
        let pairs = 2 * (self.buffers as usize - 1) * self.message_size as usize;
        let messages = (self.pairs_offset() + pairs).next_multiple_of(PAGE);
        let send_buffers = messages + 2 * self.large_messages_bytes();
        [messages, send_buffers, send_buffers + 2 * self.largest_send_buffer as usize]
    }

    fn total(self) -> usize {
        self.large_offsets()[2]
    }
}

/// Why a segment can not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// The kernel refused memory or a mapping.
    System(sys::Errno),
    /// Not a segment, or its size is not sealed.
    NotASegment,
    /// Made by another version of sanshim.
    Version(u32),
    /// Sizes out of range.
    Geometry,
}

impl std::fmt::Display for SegmentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SegmentError::System(e) => write!(f, "no memory for the segment: {e}"),
            SegmentError::NotASegment => write!(f, "the peer did not send a sealed segment"),
            SegmentError::Version(v) => {
                write!(f, "the peer's segment has version {v}, ours is {VERSION}: run one version")
            }
            SegmentError::Geometry => write!(f, "the peer's segment has sizes out of range"),
        }
    }
}

impl std::error::Error for SegmentError {}

/// Who has the connection: one word decides, so both ends always agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Offered by the connector; nobody took it yet.
    Pending = 0,
    /// The acceptor will use it. Over a fabric: uses it.
    Taken = 1,
    /// One of both went on over TCP before both used it.
    Withdrawn = 2,
    /// The acceptor declined.
    Refused = 3,
    /// The connector uses it: what the acceptor took is no offer of a connection that is gone.
    Confirmed = 4,
    /// Both use it.
    Settled = 5,
}

impl State {
    fn of(word: u32) -> State {
        match word {
            0 => State::Pending,
            1 => State::Taken,
            2 => State::Withdrawn,
            4 => State::Confirmed,
            5 => State::Settled,
            _ => State::Refused,
        }
    }
}

#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    version: AtomicU32,
    buffers: AtomicU32,
    message_size: AtomicU32,
    send_buffer: AtomicU32,
    largest_message: AtomicU32,
    largest_send_buffer: AtomicU32,
    state: Line<AtomicU32>,
    sides: [Side; 2],
}

/// A mapped segment. Copies refer to the same mapping, which [`Segment::unmap`] ends.
#[derive(Clone, Copy)]
pub struct Segment {
    base: *mut u8,
    geometry: Geometry,
    /// Offsets that follow from the geometry: of the connector's message buffers of the first size, by the lowest
    /// bits of the sequence number, and of the large parts.
    slots: [u32; MOST_BUFFERS as usize],
    large: [usize; 3],
}

// SAFETY: all shared parts are atomics or raw bytes that are only copied.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    fn new(base: *mut u8, geometry: Geometry) -> Self {
        let pairs = geometry.pairs_offset();
        let slot = |sequence| geometry.slot_offset(pairs, Role::Connector, sequence as u32) as u32;
        Self { base, geometry, slots: std::array::from_fn(slot), large: geometry.large_offsets() }
    }

    /// A new segment, mapped, with the descriptor that the peer needs to map it.
    pub fn create(geometry: Geometry) -> Result<(Self, Fd), SegmentError> {
        let geometry = geometry.check()?;
        let fd = file::sealed_memory(c"sanshim", geometry.total()).map_err(SegmentError::System)?;
        let base = match file::map_shared(Some(fd), geometry.total()) {
            Ok(base) => base,
            Err(e) => {
                file::close(fd);
                return Err(SegmentError::System(e));
            }
        };
        let segment = Self::new(base, geometry);
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

    /// Maps a segment that the peer created. Its size is sealed and matches its geometry, so that
    /// no access can fault; the geometry is read once.
    pub fn attach(fd: Fd) -> Result<Self, SegmentError> {
        let sealed = file::sealed_size(fd).map_err(SegmentError::System)?;
        let size = match sealed.map(usize::try_from) {
            Some(Ok(size)) if size >= PAGE => size,
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
        match checked {
            Ok(geometry) => Ok(Self::new(base, geometry)),
            Err(e) => {
                // SAFETY: `head` is not used any more.
                unsafe { file::unmap(base, size) };
                Err(e)
            }
        }
    }

    /// Ends the mapping.
    ///
    /// # Safety
    /// No copy of this segment is used afterwards.
    pub unsafe fn unmap(self) {
        // SAFETY: the caller's promise.
        unsafe { file::unmap(self.base, self.geometry.total()) }
    }

    fn head(&self) -> &Head {
        // SAFETY: `base` maps at least a page that begins with a Head of atomics.
        unsafe { &*self.base.cast::<Head>() }
    }

    /// All of it, as a hostile peer can write it.
    #[cfg(test)]
    pub(crate) fn words(&self) -> &[AtomicU32] {
        // SAFETY: the mapping is as large, and its parts are atomics or raw bytes that are only copied.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.geometry.total() / 4) }
    }

    /// The division of the segment, as checked when it was mapped.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What `role` publishes.
    #[inline]
    pub fn side(&self, role: Role) -> &Side {
        &self.head().sides[role as usize]
    }

    /// Who has the connection. Acquire.
    pub fn state(&self) -> State {
        State::of(self.head().state.0.load(Ordering::Acquire))
    }

    /// Moves the state from `from` to `to`; false if it was another.
    pub fn change(&self, from: State, to: State) -> bool {
        let (from, to) = (from as u32, to as u32);
        let state = &self.head().state.0;
        state.compare_exchange(from, to, Ordering::SeqCst, Ordering::Acquire).is_ok()
    }

    /// Moves the state from pending to `to`; false if it had been decided already.
    pub fn decide(&self, to: State) -> bool {
        self.change(State::Pending, to)
    }

    /// An end goes on over TCP; false if both use the session by now.
    pub fn withdraw(&self) -> bool {
        [State::Pending, State::Taken, State::Confirmed]
            .into_iter()
            .any(|from| self.change(from, State::Withdrawn))
            || matches!(self.state(), State::Withdrawn | State::Refused)
    }

    /// Both directions begin on the SAN, as over a fabric.
    pub fn begin_turned(&self) {
        for side in &self.head().sides {
            side.sending.0.doorbells.begin_turned();
        }
    }

    /// The message buffer for `sequence` in the direction that `sender` sends. `size`: bytes of a
    /// message buffer after a resize (A9), at most the geometry's largest; 0: never resized.
    #[inline(always)]
    pub fn slot(&self, sender: Role, sequence: u32, size: u32) -> Slot {
        let geometry = &self.geometry;
        let offset = if size == 0 {
            let connectors = self.slots[(sequence % MOST_BUFFERS) as usize] as usize;
            connectors + sender as usize * geometry.message_size as usize
        } else {
            geometry.large_slot_offset(self.large[0], sender, sequence, size)
        };
        // SAFETY: within the mapping and aligned, whatever the sequence number and the size.
        unsafe { Slot::at(self.base.add(offset)) }
    }

    /// The send buffer of the direction that `sender` sends, or the large one it may change to.
    #[inline]
    pub fn send_buffer(&self, sender: Role, large: bool) -> super::Ring {
        let geometry = &self.geometry;
        let (offset, size) = if large {
            let size = geometry.largest_send_buffer;
            (self.large[1] + sender as usize * size as usize, size)
        } else {
            (geometry.send_buffer_offset(sender), geometry.send_buffer)
        };
        // SAFETY: the ring of `size` bytes lies within the mapping.
        unsafe { super::Ring::new(self.base.add(offset), size) }
    }

    /// Makes sure that there is memory for `bytes` of the large messages or the large send buffer of
    /// `sender`'s direction (A9): without it a later access would end the process.
    ///
    /// # Errors
    /// ENOMEM, or whatever the kernel says.
    pub fn provide(&self, sender: Role, part: Part) -> sys::Result<()> {
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
        // SAFETY: within the mapping; populating changes no content.
        unsafe { file::populate(self.base.add(offset), length) }
    }

    /// Gives the memory of both send buffers of `sender`'s direction back, whose bytes were all read.
    pub fn free_send_buffers(&self, sender: Role) {
        for large in [false, true] {
            let ring = self.send_buffer(sender, large);
            // SAFETY: within the mapping, and nobody needs the bytes.
            unsafe { file::free(ring.stretch(0, 1).0, ring.size() as usize) };
        }
    }
}

/// A part of a segment that is used only after a resize (A9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The large message buffers.
    Messages,
    /// The large send buffer.
    SendBuffer,
}

const _: () = assert!(std::mem::size_of::<Head>() <= PAGE);

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
        assert!(made.decide(State::Taken));
        assert!(!seen.decide(State::Withdrawn));
        assert_eq!(seen.state(), State::Taken);
        file::close(fd);
        // SAFETY: neither is used again.
        unsafe {
            made.unmap();
            seen.unmap();
        }
    }

    #[test]
    fn m4_buffers_lie_apart_and_inside() {
        let small = Geometry {
            buffers: 4,
            message_size: 256,
            send_buffer: 1 << 16,
            largest_message: 512,
            largest_send_buffer: 1 << 17,
        };
        for g in [GEOMETRY, small, Geometry { buffers: 64, message_size: 65536, ..small }] {
            let mut taken = vec![(0, size_of::<Head>())];
            for sender in [Role::Connector, Role::Acceptor] {
                let size = g.message_size as usize;
                let slots = (u32::MAX - 1..=u32::MAX).chain(0..g.buffers - 2);
                taken.extend(slots.map(|s| (g.slot_offset(g.pairs_offset(), sender, s), size)));
                taken.push((g.send_buffer_offset(sender), g.send_buffer as usize));
                let [messages, send_buffers, _] = g.large_offsets();
                let (size, large) = (g.largest_message, g.largest_send_buffer as usize);
                let slots = (0..g.buffers)
                    .map(|s| (g.large_slot_offset(messages, sender, s, size), size as usize));
                taken.extend(slots);
                taken.push((send_buffers + sender as usize * large, large));
                let slot = |sequence| g.slot_offset(g.pairs_offset(), sender, sequence);
                assert_eq!(slot(7), slot(7 + g.buffers));
            }
            taken.sort_unstable();
            assert!(taken.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "{g:?}");
            assert!(taken.iter().all(|t| t.0 % 64 == 0 && t.0 + t.1 <= g.total()), "{g:?}");
        }
    }

    #[test]
    fn what_is_not_a_sealed_segment_is_refused() {
        let not_memory = file::eventfd(0).unwrap();
        assert!(Segment::attach(not_memory).is_err());
        file::close(not_memory);
        let blank = file::sealed_memory(c"blank", PAGE).unwrap();
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
