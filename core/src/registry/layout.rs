//! The file's layout: one header, then [`CAPACITY`] slots, then the last events. The file is sparse.
//!
//! All of it is atomics, because the writer changes what readers look at. A change of the header or of [`Slot`] needs a
//! new [`VERSION`].

use std::sync::atomic::{AtomicU32, AtomicU64};

use super::admission::Admission;
use super::closed::Closed;
use super::events::{EventProgress, EventRing, EVENTS, EVENT_SIZE};
use super::slot::Slot;
use crate::reason::Reason;

/// First word of a finished file.
pub(super) const MAGIC: u64 = u64::from_ne_bytes(*b"sanshim\0");
/// Version of the layout.
pub(crate) const VERSION: u32 = 5;
/// Connections that a process can publish. Further ones use the spare slot, which nobody sees.
pub(crate) const CAPACITY: usize = 16384;
/// Bytes of the header, which is one page.
pub(super) const HEADER_SIZE: usize = size_of::<RegistryHeader>();
/// Bytes of a slot.
pub(super) const SLOT_SIZE: usize = size_of::<Slot>();
/// Bytes of the file.
pub(super) const FILE_SIZE: usize = size_of::<RegistryTable>();
/// Offset of the events in the file.
pub(super) const EVENTS_AT: usize = HEADER_SIZE + CAPACITY * SLOT_SIZE;
/// Room for reasons.
pub(super) const REASONS: usize = 32;
/// Bytes of the program's name that are kept.
pub(super) const PROGRAM_SIZE: usize = 64;

/// Tells which process publishes. Written once, before the file gets its name. Only `high_water`, `requests`,
/// `returned`, `helper`, `events`, `closed` and `budget` change later.
#[repr(C, align(4096))]
pub(super) struct RegistryHeader {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    pub(super) header_size: AtomicU32,
    pub(super) slot_size: AtomicU32,
    pub(super) capacity: AtomicU32,
    pub(super) pid: AtomicU32,
    /// Effective user when the file was made.
    pub(super) uid: AtomicU32,
    /// Clock ticks after boot, field 22 of /proc/pid/stat. Tells the process from a later one with the same id.
    pub(super) start_time: AtomicU64,
    /// Inode of the pid namespace that `pid` belongs to; 0 when unknown.
    pub(super) pid_namespace: AtomicU64,
    /// Device and inode of the executable; 0 when unknown. A process that has executed another program, without the
    /// shim, keeps its id and its start time.
    pub(super) executable: [AtomicU64; 2],
    /// All slots that were ever used are below this index, so that readers need not look at the others.
    pub(super) high_water: AtomicU32,
    /// Requests that `sanctl` has made. It writes one into a slot, and counts up afterwards.
    pub(super) requests: AtomicU32,
    /// The program's name, padded with NUL.
    pub(super) program: [AtomicU64; PROGRAM_SIZE / 8],
    /// How many connections went back to TCP, by the number of the reason.
    pub(super) returned: [AtomicU64; REASONS],
    /// The mailbox of the process's helper thread; 0 if there is none.
    pub(super) helper: AtomicU64,
    /// How many events were noted, and who follows them.
    pub(super) events: EventProgress,
    /// The counts of connections that are closed.
    pub(super) closed: Closed,
    /// Bytes of memory that segments have or may touch, and that they may have: 0 where nothing limits them.
    pub(super) budget: [AtomicU64; 2],
    /// With whom the process shares memory.
    pub(super) admission: Admission,
    _reserved: [AtomicU64; 342 - REASONS],
}

/// The file as it is mapped.
#[repr(C)]
pub(super) struct RegistryTable {
    pub(super) header: RegistryHeader,
    pub(super) slots: [Slot; CAPACITY],
    pub(super) events: EventRing,
}

const _: () = assert!(HEADER_SIZE == 4096);
const _: () = assert!(Reason::ALL.len() <= REASONS);
const _: () = assert!(SLOT_SIZE == 384);
const _: () = assert!(FILE_SIZE == EVENTS_AT + EVENTS * EVENT_SIZE);
const _: () = assert!(EVENTS_AT.is_multiple_of(4096) && EVENT_SIZE == 32);
