//! Socket options that mean something to the library. The table says who honours each on a connection that is on the
//! SAN. An option that is not here is the kernel's, and acts on the anchor. The table decides by name alone:
//! `descriptors/options` has what an option does, and `anchor/options` what it does to the anchor.

use crate::sys::syn::TCP_SAVE_SYN;
use libc::{IPPROTO_TCP, SOL_SOCKET};

/// The kernel's numbers. The time-outs are those in 64 bits on every machine, beside libc's own.
const TCP_ZEROCOPY_RECEIVE: i32 = 35;
pub(super) const SO_MAX_PACING_RATE: i32 = 47;
const SO_RCVTIMEO_NEW: i32 = 66;
const SO_SNDTIMEO_NEW: i32 = 67;

/// Who honours an option on a connection that is on the SAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// TCP alone. Where the option is in force the connection stays on TCP, or goes there, or a call fails.
    Tcp,
    /// TCP alone, and the connection stays on the SAN: the kernel keeps the option for when the connection is on TCP again.
    TcpLater,
    /// The library does on the SAN what the kernel does on TCP.
    Both,
    /// The library answers on the SAN: the kernel would answer for the anchor.
    San,
}

/// What it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// How much may wait to be sent.
    SendBuffer,
    /// From how many bytes on a socket is readable.
    LowWater,
    /// After how long without progress the connection fails.
    UserTimeout,
    /// How long a call waits.
    TimeOut,
    /// Where the next MSG_PEEK begins.
    PeekOffset,
    /// Times that the kernel reports of segments.
    Timestamps,
    /// How many bytes a second leave at most.
    Pacing,
    /// The kernel reports when it no longer needs the memory that was sent from.
    ZeroCopySend,
    /// The call receives, into pages of the kernel.
    ZeroCopyReceive,
    /// A layer of the kernel's above TCP, such as TLS.
    UpperLayer,
    /// The listener keeps first segments.
    FirstSegment,
    /// When bytes leave in segments, and where the urgent one is read.
    Segments,
    /// Why the connection broke.
    Error,
    /// The state of the connection.
    State,
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketOption {
    pub(super) level: i32,
    pub(super) name: i32,
    pub(super) by: By,
    pub(super) topic: Topic,
}

/// All of them.
pub(super) const OPTIONS: [SocketOption; 20] = [
    option(SOL_SOCKET, libc::SO_SNDBUF, By::Both, Topic::SendBuffer),
    option(SOL_SOCKET, libc::SO_SNDBUFFORCE, By::Both, Topic::SendBuffer),
    option(SOL_SOCKET, libc::SO_RCVLOWAT, By::Both, Topic::LowWater),
    option(IPPROTO_TCP, libc::TCP_USER_TIMEOUT, By::Both, Topic::UserTimeout),
    option(SOL_SOCKET, libc::SO_RCVTIMEO, By::Both, Topic::TimeOut),
    option(SOL_SOCKET, libc::SO_SNDTIMEO, By::Both, Topic::TimeOut),
    option(SOL_SOCKET, SO_RCVTIMEO_NEW, By::Both, Topic::TimeOut),
    option(SOL_SOCKET, SO_SNDTIMEO_NEW, By::Both, Topic::TimeOut),
    option(SOL_SOCKET, libc::SO_PEEK_OFF, By::Tcp, Topic::PeekOffset),
    option(SOL_SOCKET, libc::SO_TIMESTAMPING, By::Tcp, Topic::Timestamps),
    option(SOL_SOCKET, SO_MAX_PACING_RATE, By::Tcp, Topic::Pacing),
    option(SOL_SOCKET, libc::SO_ZEROCOPY, By::Tcp, Topic::ZeroCopySend),
    option(IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, By::Tcp, Topic::ZeroCopyReceive),
    option(IPPROTO_TCP, libc::TCP_ULP, By::Tcp, Topic::UpperLayer),
    option(IPPROTO_TCP, TCP_SAVE_SYN, By::Tcp, Topic::FirstSegment),
    option(IPPROTO_TCP, libc::TCP_NODELAY, By::TcpLater, Topic::Segments),
    option(IPPROTO_TCP, libc::TCP_CORK, By::TcpLater, Topic::Segments),
    option(SOL_SOCKET, libc::SO_OOBINLINE, By::TcpLater, Topic::Segments),
    option(SOL_SOCKET, libc::SO_ERROR, By::San, Topic::Error),
    option(IPPROTO_TCP, libc::TCP_INFO, By::San, Topic::State),
];

const fn option(level: i32, name: i32, by: By, topic: Topic) -> SocketOption {
    SocketOption { level, name, by, topic }
}

/// The option of this level and name; `None`: it is the kernel's alone.
pub(super) fn find(level: i32, name: i32) -> Option<SocketOption> {
    OPTIONS.into_iter().find(|one| one.level == level && one.name == name)
}

impl SocketOption {
    /// True if the kernel is asked on the SAN what the program has set.
    pub(super) fn matters_to_move(self) -> bool {
        matches!(self.by, By::Tcp | By::Both)
    }

    /// True if a socket that stands in for another one on TCP gets its value.
    pub(super) fn is_copied(self) -> bool {
        self.by == By::TcpLater || self.topic == Topic::LowWater
    }
}
