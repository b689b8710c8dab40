//! The plain data of the interface. Types that are `repr(C)` cross the C table as they are. Each has its twin in
//! include/sanshim_provider.h, and core/tests/provider_library/header.rs keeps the two in step.

use super::error::{Error, ProviderResult};

/// Version of the C table. A library and a client of different versions do not meet.
pub const VERSION: u32 = 3;

/// How an asynchronous operation began (N4). Only a pending one is reported later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Started {
    /// It has succeeded; nothing will be reported.
    Done,
    /// It goes on; its result will be reported once, by `next_result` of the same object.
    Pending,
}

/// The result of an operation that was pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// The client's name for the operation.
    pub request: u64,
    /// How it ended.
    pub result: ProviderResult<()>,
}

/// What a provider says of itself (N2).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Info {
    /// Kind, for example `verbs`: ASCII, ended by a zero.
    pub kind: [u8; 16],
    /// The provider's own version, for people: ASCII, ended by a zero.
    pub version: [u8; 32],
    /// [`Info::IPV4`] and [`Info::IPV6`].
    pub families: u32,
}

impl Info {
    /// Serves IPv4 addresses.
    pub const IPV4: u32 = 1;
    /// Serves IPv6 addresses.
    pub const IPV6: u32 = 2;

    /// Texts that are too long are cut.
    pub fn new(kind: &str, version: &str, families: u32) -> Self {
        let mut info = Info { kind: [0; 16], version: [0; 32], families };
        let (k, v) = (kind.len().min(15), version.len().min(31));
        info.kind[..k].copy_from_slice(&kind.as_bytes()[..k]);
        info.version[..v].copy_from_slice(&version.as_bytes()[..v]);
        info
    }

    /// The kind as text; what is not UTF-8 is replaced.
    pub fn kind(&self) -> String {
        text(&self.kind)
    }

    /// The version as text.
    pub fn version(&self) -> String {
        text(&self.version)
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// An adapter's limits. The provider asks the device for them, and never assumes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Limits {
    /// Largest registration in bytes.
    pub max_registration: u64,
    /// Largest message in bytes.
    pub max_message: u32,
    /// Largest RDMA read or RDMA write in bytes; 0: there are none.
    pub max_transfer: u32,
    /// Largest inline send in bytes; 0: none.
    pub max_inline: u32,
    /// Segments of one request. A device may take fewer for an RDMA read, and then refuses a read with more.
    pub max_segments: u32,
    /// Receives posted on one queue pair.
    pub max_receive_depth: u32,
    /// Sends, reads, writes, binds and invalidations outstanding on one queue pair.
    pub max_initiator_depth: u32,
    /// Receives posted on one shared receive queue; 0: there are none.
    pub max_shared_receive_depth: u32,
    /// Results that one completion queue holds.
    pub max_completion_depth: u32,
    /// RDMA reads of the peer that a queue pair serves at a time.
    pub max_inbound_reads: u32,
    /// RDMA reads that a queue pair starts at a time.
    pub max_outbound_reads: u32,
    /// Bytes that a connection request carries beside the connection.
    pub max_private_data: u32,
    /// From this many bytes on RDMA is worth more than messages (A2).
    pub rdma_threshold: u32,
    /// [`Limits::BIND`] and the others of that kind.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

impl Limits {
    /// Memory can be made reachable for the peer of one queue pair ([`QueuePair::bind`]). Without
    /// it there is neither RDMA read nor RDMA write, since M2 could not be kept.
    ///
    /// [`QueuePair::bind`]: super::client::QueuePair::bind
    pub const BIND: u32 = 1;
    /// Registering memory of the application is safe when the program forks. Without it only
    /// memory that the library maps itself may be registered.
    pub const APPLICATION_MEMORY: u32 = 2;
    /// A message that finds no receive posted ends the connection instead of waiting (A1 does not hold), and a send
    /// completes before the peer has it. iWARP is so.
    pub const UNHELD: u32 = 4;
    /// RDMA writes can tell the peer of themselves ([`Flags::TELL`]).
    pub const TELLS: u32 = 8;
    /// A queue pair may fall silent for ever if it has to send again what was posted before a bind. So a client binds only
    /// once nothing is outstanding. Soft-RoCE is so.
    pub const BIND_ALONE: u32 = 16;
}

/// A piece of registered local memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemoryPiece {
    /// Where it starts.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The region's local token.
    pub token: u32,
}

/// Where and how memory of the peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RemoteMemory {
    /// Address in the peer.
    pub address: u64,
    /// The token that its bind gave.
    pub token: u32,
}

/// The remote access that a bind allows (M3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RemoteAccess {
    /// The peer may read.
    Read = 1,
    /// The peer may write.
    Write = 2,
}

impl RemoteAccess {
    /// From the C table.
    pub fn from_code(code: u32) -> ProviderResult<Self> {
        match code {
            1 => Ok(RemoteAccess::Read),
            2 => Ok(RemoteAccess::Write),
            _ => Err(Error::InvalidParameter),
        }
    }
}

/// Options of one request on a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Flags(pub u32);

impl Flags {
    /// None.
    pub const NONE: Flags = Flags(0);
    /// No completion when it succeeds. A later completion of the same queue pair tells that it
    /// did. At most half of the initiator depth may be silent in a row.
    pub const SILENT: Flags = Flags(1);
    /// Starts only after earlier RDMA reads of this queue pair have ended.
    pub const READ_FENCE: Flags = Flags(2);
    /// Of an invalidation: it is no request, and waits for none. It has ended when the call returns, and has no
    /// completion.
    pub const AT_ONCE: Flags = Flags(4);
    /// Of an RDMA write, where the adapter has [`Limits::TELLS`]: it takes one of the peer's receives, which completes as
    /// [`RequestKind::Told`] once all is written. The receive's buffer stays as it was.
    pub const TELL: Flags = Flags(8);

    /// Whether all of `other` are set.
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// What kind of request a completion is of. The numbers cross the C table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RequestKind {
    /// A receive.
    Receive = 0,
    /// A send.
    Send = 1,
    /// An RDMA read.
    Read = 2,
    /// An RDMA write.
    Write = 3,
    /// A bind.
    Bind = 4,
    /// An invalidation.
    Invalidate = 5,
    /// Unknown: the request failed and the device does not say what it was.
    Unknown = 6,
    /// A receive that an RDMA write with [`Flags::TELL`] took. Its length is that of the write.
    Told = 7,
}

impl RequestKind {
    fn from_code(code: u32) -> Self {
        use RequestKind::*;
        [Receive, Send, Read, Write, Bind, Invalidate, Unknown, Told]
            .get(code as usize)
            .copied()
            .unwrap_or(Unknown)
    }
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Completion {
    /// The client's name for the request.
    pub request: u64,
    /// The client's name for the queue pair.
    pub queue_pair: u64,
    /// 0, or an [`Error`]'s number negated.
    pub status: i32,
    /// A [`RequestKind`]'s number.
    pub kind: u32,
    /// Bytes received; 0 for other kinds.
    pub length: u32,
    /// Zero.
    pub reserved: u32,
}

impl Completion {
    /// Makes an entry.
    pub fn new(
        kind: RequestKind,
        request: u64,
        queue_pair: u64,
        result: ProviderResult<u32>,
    ) -> Self {
        let (status, length) = match result {
            Ok(length) => (0, length),
            Err(error) => (-(error as i32), 0),
        };
        Completion { request, queue_pair, status, kind: kind as u32, length, reserved: 0 }
    }

    /// What it completes.
    pub fn kind(&self) -> RequestKind {
        RequestKind::from_code(self.kind)
    }

    /// The bytes received, or why it failed.
    pub fn result(&self) -> ProviderResult<u32> {
        match self.status {
            0 => Ok(self.length),
            status => Err(Error::from_code(status.wrapping_neg())),
        }
    }
}

/// Sizes of a queue pair; each must be within the adapter's [`Limits`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QueuePairAttributes {
    /// Given back in every completion.
    pub context: u64,
    /// Receives posted at a time; ignored with a shared receive queue.
    pub receive_depth: u32,
    /// Other requests outstanding at a time.
    pub initiator_depth: u32,
    /// Segments of one request.
    pub segments: u32,
    /// Largest inline send in bytes.
    pub inline_size: u32,
}
