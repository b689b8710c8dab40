//! One end of a connection: the state that the processes sharing it have in common.
//!
//! It lies in memory that a fork shares and that the peer cannot reach. So any process of the family can go on where
//! another stopped (D1), and can trust all that is here.
//!
//! An endpoint keeps words, flags and locks, and says what they mean. [`stream`](crate::switch::stream) and the rooms
//! above know what they are for. An endpoint knows no socket and no descriptor. It makes no system call but to wait for
//! a lock and for its memory.

pub(in crate::switch) mod batching;
pub(in crate::switch) mod control;
pub(in crate::switch) mod departure;
pub(in crate::switch) mod due_words;
pub(in crate::switch) mod memory;
pub(in crate::switch) mod sleepers;

use crate::fabric::Controller;
use crate::provider::shm::{Geometry, Role};
use crate::session::transfer::{Abilities, Preference, Receiving, Sending};
use crate::session::{
    Called, EndState, EndWord, InEvent, OutEvent, OverTcp, Resize, Session, Suspension, WayIn,
    WayOut,
};
use crate::switch::endpoint::control::ControlLock;
use crate::switch::endpoint::sleepers::Sleepers;
use crate::switch::policy::{self, Relation};
use crate::sys::lender::Lender;
use crate::sys::lock::FamilyLock;
use crate::sys::lock_order::LockRank;
use crate::sys::Errno;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};

/// Conditions of an endpoint, kept as bits.
pub(super) mod flag {
    /// The open file description has O_NONBLOCK, as far as the hooks saw.
    pub(crate) const NONBLOCK: u32 = 1 << 0;
    /// This end will send nothing more.
    pub(crate) const SEND_SHUT: u32 = 1 << 1;
    /// This end wants to receive nothing more.
    pub(crate) const RECEIVE_SHUT: u32 = 1 << 2;
    /// Both.
    pub(crate) const BOTH_SHUT: u32 = SEND_SHUT | RECEIVE_SHUT;
    /// The kernel reported the end of the anchor's stream: the peer closed or died.
    pub(crate) const ANCHOR_ENDED: u32 = 1 << 3;
    /// The connection was reset.
    pub(crate) const RESET: u32 = 1 << 4;
    /// The program has been told of the error: from now on end of stream and EPIPE.
    pub(crate) const ERROR_REPORTED: u32 = 1 << 5;
    /// The peer's first header arrived: it has the session (A1).
    pub(crate) const ESTABLISHED: u32 = 1 << 7;
    /// The peer is gone and its kernel said so after the end of the stream: sending is EPIPE.
    pub(crate) const BROKEN_PIPE: u32 = 1 << 9;
    /// Both ends were in one process when the session was made.
    pub(crate) const ONE_PROCESS: u32 = 1 << 18;
    /// Thread ids of the peer's process mean the same here, and the kernel shows which socket is its end.
    pub(crate) const PEER_IN_SIGHT: u32 = 1 << 6;
    /// The peer sent what made no sense: nothing is taken in any more.
    pub(crate) const BROKEN: u32 = 1 << 19;
    /// The program set TCP_USER_TIMEOUT.
    pub(crate) const TIMED: u32 = 1 << 24;
}

/// Private to the holder of the send lock.
#[repr(C, align(64))]
pub(crate) struct SendHalf {
    // The first cache line is all that a message needs.
    /// One sender at a time (D2).
    pub(crate) lock: ControlLock,
    /// Bytes ever put into the send buffer.
    pub(crate) tail: AtomicU64,
    /// The peer's head as last seen: a lower bound.
    pub(crate) seen_head: AtomicU64,
    /// Bytes ever sent in messages, and the last message that they include: see [`Tally`].
    pub(crate) in_messages: Tally,
    /// Bytes of a message buffer after a resize (A9); zero: never resized.
    pub(crate) message_size: AtomicU32,
    /// Number of the last message in a buffer of the first size.
    pub(crate) resized_by: AtomicU32,
    // The rest.
    /// One above the position from which on bytes lie in the large send buffer; zero: none do.
    pub(crate) grown: AtomicU64,
    /// Most bytes that may wait in the send buffer if the program fixed that (SO_SNDBUF). Otherwise zero.
    pub(crate) fixed: AtomicU32,
    /// How often a sender was told that there is no space: each makes an EPOLLOUT edge due.
    pub(crate) stalls: AtomicU32,
    /// How often the send buffer was found full since the connection began or it grew (A9).
    pub(crate) full: AtomicU32,
    /// Where the window of bytes began that is being timed, when, and how many windows in a row were fast.
    pub(crate) window: AtomicU64,
    /// See [`window`](Self::window); clock in ns.
    pub(crate) window_at: AtomicU64,
    /// See [`window`](Self::window).
    pub(crate) fast_windows: AtomicU32,
    /// Clock (ns) when it grew.
    pub(crate) grown_at: AtomicU64,
    /// 1 while that message, which says so, may be out and `message_size` not changed yet.
    pub(crate) resizes: AtomicU32,
    /// Where what this end sends again by itself begins: its first message, as in [`ReceiveHalf::position`], and its place
    /// in the send buffer.
    pub(crate) pulled_message: AtomicU64,
    /// See [`pulled_message`](Self::pulled_message).
    pub(crate) pulled_head: AtomicU64,
    /// RDMA transfers of what this end sends.
    pub(crate) transfers: Sending,
    /// 1: the holder of the lock is in an RDMA transfer that waits for the peer.
    pub(crate) awaits_peer: AtomicU32,
    /// 1: it is in one of that transfer's waits, or the last holder that was did not come out of it.
    pub(crate) waits: AtomicU32,
    /// Whether RDMA pays here.
    pub(crate) preference: Preference,
}

/// Private to the holder of the receive lock.
#[repr(C, align(64))]
pub(crate) struct ReceiveHalf {
    // The first two cache lines, and its place in `lengths`, are all that a receive of one message needs.
    /// One receiver at a time (D2).
    pub(crate) lock: ControlLock,
    /// Upper half: sequence number of the message the program reads from next; lower half: bytes of it
    /// already read.
    pub(crate) position: AtomicU64,
    /// Bytes of the messages read to the end, and the next message: see [`Tally`].
    pub(crate) in_messages: Tally,
    /// Bytes ever taken from the peer's send buffer.
    pub(crate) head: AtomicU64,
    /// SO_RCVLOWAT.
    pub(crate) low_water: AtomicU32,
    /// As in [`SendHalf::message_size`], for what this end receives.
    pub(crate) message_size: AtomicU32,
    /// 2^32 plus the number of the last message of the old size, while one may be unread. Otherwise zero.
    pub(crate) old_size_until: AtomicU64,
    /// Up to where MSG_PEEK or FIONREAD saw bytes, counted from the connection's first.
    pub(crate) seen: AtomicU64,
    /// One above the bytes of the segment behind which nothing is given out, since both directions are shut; zero: all is.
    pub(crate) refused_from: AtomicU64,
    /// RDMA transfers of what this end receives.
    pub(crate) transfers: Receiving,
    // The rest.
    /// How far it is with what the peer sent over TCP before it turned.
    pub(crate) over_tcp: OverTcp,
    /// 2^32 plus the number of the control message that is being obeyed; zero: none.
    pub(crate) obeying: AtomicU64,
    /// Bytes that the peer sent again over TCP, that this end had read before, and that it has taken off there.
    pub(crate) passed: AtomicU64,
    /// Checked payloads of received messages, since a header is read only once: bytes of data in
    /// the lower 24 bits, bytes of the body before it in the upper 8.
    pub(crate) lengths: [AtomicU32; 64],
    /// The size that this end granted the sender last. The sender says when it begins to use it.
    pub(crate) granted_size: AtomicU32,
    /// The thread whose buffer is posted for RDMA write, or was last.
    pub(crate) poster: AtomicU32,
    /// What is known of letting the sender get ahead.
    pub(crate) batching: crate::switch::endpoint::batching::Batching,
}

const _: () = assert!(
    std::mem::offset_of!(SendHalf, grown) == 64
        && std::mem::offset_of!(ReceiveHalf, old_size_until) == 64
        && std::mem::offset_of!(Endpoint, called) == 64
        && std::mem::offset_of!(Endpoint, due) < 128
);

/// TCP_USER_TIMEOUT, and since when it runs.
#[repr(C)]
pub(crate) struct Timing {
    /// In ms; zero: none.
    pub(crate) limit: AtomicU32,
    /// Clock (ns) since when the peer has read nothing although there was no room; zero: there was.
    pub(crate) since: AtomicU64,
    /// Bytes that the peer had read by then.
    pub(crate) read: AtomicU64,
}

/// Bytes in messages, and the lowest byte of the number of the message up to which they are counted. They are one word,
/// so that a thread that takes over from a dead one knows whether the newest is counted.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    /// Bytes counted so far; the lower 56 bits.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> 8
    }

    /// Counts `bytes` more, up to message `sequence`.
    #[inline]
    pub(crate) fn count(&self, bytes: u64, sequence: u32) {
        let counted = (self.bytes() + bytes) << 8 | u64::from(sequence as u8);
        self.0.store(counted, Ordering::Release);
    }

    /// True if it is counted up to message `sequence`, and not up to a neighbour of that.
    pub(crate) fn is_up_to(&self, sequence: u32) -> bool {
        self.0.load(Ordering::Relaxed) as u8 == sequence as u8
    }
}

impl ReceiveHalf {
    /// Sequence number of the message the program reads from next.
    #[inline]
    pub(crate) fn next_read(&self) -> u32 {
        (self.position.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Bytes of that message already read.
    #[inline]
    pub(crate) fn offset(&self) -> u32 {
        self.position.load(Ordering::Relaxed) as u32
    }

    /// `offset` bytes of message `next` are read.
    #[inline]
    pub(crate) fn read_to(&self, next: u32, offset: u32) {
        self.position.store(u64::from(next) << 32 | u64::from(offset), Ordering::Release);
    }

    /// A message with `bytes` of data is read to the end; the next one is `next`.
    #[inline]
    pub(crate) fn finish(&self, next: u32, bytes: u32) {
        self.in_messages.count(bytes.into(), next);
        self.read_to(next, 0);
    }

    /// Bytes ever received.
    #[inline]
    pub(crate) fn total(&self) -> u64 {
        let buffered = self.head.load(Ordering::Relaxed);
        let in_messages = self.in_messages.bytes() + u64::from(self.offset());
        buffered + in_messages + self.transfers.bytes()
    }

    /// True if message `sequence` was sent before message buffers grew (A9).
    #[inline]
    pub(crate) fn is_of_old_size(&self, sequence: u32) -> bool {
        let until = self.old_size_until.load(Ordering::Relaxed);
        until != 0 && (until as u32).wrapping_sub(sequence) as i32 >= 0
    }
}

/// For each of the peer's select counters: up to which value rings answered it.
#[repr(C)]
pub(crate) struct Calls {
    /// Rings for data, or the end of the stream.
    pub(crate) read: Called,
    /// Rings for space.
    pub(crate) write: Called,
}

impl SendHalf {
    /// Bytes ever sent.
    #[inline]
    pub(crate) fn total(&self) -> u64 {
        self.tail.load(Ordering::Relaxed) + self.in_messages.bytes() + self.transfers.bytes()
    }
}

/// See the module.
#[repr(C, align(64))]
pub(crate) struct Endpoint {
    // The first two cache lines, with those of `send` and `receive`, are all that most transfers need.
    /// Credits and sequence numbers.
    pub(crate) session: Session,
    /// The states of its directions, and what else holds of it ([`flag`]).
    word: EndWord,
    /// Smallest transfer that RDMA is worth (A2); `u32::MAX`: none.
    threshold: AtomicU32,
    /// Clock (ticks) of the last look at the anchor in the kernel.
    pub(crate) looked_at: AtomicU64,
    /// Processes that were forked while they had the socket open, this one included.
    pub(crate) holders: AtomicU32,
    /// Edges that this end makes itself: each shutdown, also one that fails, and SO_RCVLOWAT where enough is there.
    pub(in crate::switch) own_edges: AtomicU32,
    /// Which of our signals the bell rang for.
    pub(crate) called: Calls,
    /// The size of message buffers.
    pub(crate) resize: Resize,
    /// Control messages that wait for credit, or for the send lock.
    pub(crate) due: crate::switch::endpoint::due_words::DueWords,
    // The rest.
    /// Sending.
    pub(crate) send: SendHalf,
    /// Receiving.
    pub(crate) receive: ReceiveHalf,
    /// Whether the session is suspended, so that control can move (D4).
    pub(crate) suspension: Suspension,
    /// For a connection with another host: the process that has its queue pair.
    pub(crate) controller: Controller,
    /// RDMA operations of the provider: see [`Endpoint::abilities`].
    operations: AtomicU32,
    /// The process whose memory RDMA reaches, and when that process began ([`Lender`]).
    lender: (AtomicU32, AtomicU64),
    /// Held to take rings off the bell, and to count a sleeper on it: never both at once.
    pub(crate) anchor: FamilyLock<{ LockRank::Anchor as u8 }>,
    /// 1: a ring may lie on the bell, because the thread that it woke left it to others.
    pub(crate) rang: AtomicU32,
    /// Why the connection goes back to TCP ([`crate::reason::Reason`]); zero: it does not.
    pub(crate) returning: AtomicU32,
    /// Since when (clock, ns) it is to go back for that reason.
    pub(crate) returning_since: AtomicU64,
    /// Threads asleep in the kernel on the anchor, of all processes that share it.
    pub(in crate::switch) sleepers: Sleepers,
    /// 1: a thread was thrown out of a call, and may have left something to make up for.
    pub(crate) thrown_out: AtomicU32,
    /// Connector or acceptor.
    role: AtomicU8,
    /// errno that the kernel reported for the anchor; zero: none.
    pub(crate) error: AtomicU32,
    /// What the peer had done by then.
    pub(crate) seen_alive: AtomicU64,
    /// TCP_USER_TIMEOUT.
    pub(crate) timing: Timing,
    /// How many forks there had been when it was made: see [`crate::switch::endpoint::memory`].
    pub(crate) forks: AtomicU32,
    /// Processes that are no holders any more, and have not said all ([`departure`]).
    departing: AtomicU32,
}

impl Endpoint {
    /// Makes blank memory an endpoint of a connection with `peer`. `forks`: see [`Endpoint::forks`].
    ///
    /// # Safety
    ///
    /// `at` is zeroed memory of sufficient size that nobody else has.
    pub(in crate::switch) unsafe fn begin(
        at: *mut Endpoint,
        role: Role,
        geometry: Geometry,
        peer: Relation,
        forks: u32,
    ) {
        // SAFETY: the caller's promise; only the session is not all zero.
        let e = unsafe {
            (&raw mut (*at).session).write(Session::new(geometry.buffers as u16));
            &*at
        };
        e.receive.finish(1, 0);
        e.receive.low_water.store(1, Ordering::Relaxed);
        e.holders.store(1, Ordering::Relaxed);
        e.role.store(role as u8, Ordering::Relaxed);
        e.forks.store(forks, Ordering::Relaxed);
        e.offer(policy::abilities(peer));
        if let Some(lender) = peer.lender {
            e.use_memory_of(lender);
        }
        if peer.same_process {
            e.set(flag::ONE_PROCESS);
        }
        if peer.is_in_sight {
            e.set(flag::PEER_IN_SIGHT);
        }
    }

    /// True if other processes have this end too.
    pub(crate) fn is_shared(&self) -> bool {
        self.holders.load(Ordering::Relaxed) > 1
    }

    /// Fixes what the provider offers on this connection (A2). Before anything is sent or received.
    pub(crate) fn offer(&self, abilities: Abilities) {
        self.threshold.store(abilities.threshold, Ordering::Relaxed);
        let operations = u32::from(abilities.read) | u32::from(abilities.write) << 1;
        self.operations.store(operations, Ordering::Relaxed);
    }

    /// Fixes the process whose memory RDMA reaches. The caller has sent and received nothing.
    pub(in crate::switch) fn use_memory_of(&self, lender: Lender) {
        self.lender.0.store(lender.pid, Ordering::Relaxed);
        self.lender.1.store(lender.began, Ordering::Relaxed);
    }

    /// The process whose memory RDMA reaches, where there is RDMA.
    pub(crate) fn lender(&self) -> Lender {
        let (pid, began) = &self.lender;
        Lender { pid: pid.load(Ordering::Relaxed), began: began.load(Ordering::Relaxed) }
    }

    /// What the provider offers on this connection (A2).
    pub(crate) fn abilities(&self) -> Abilities {
        let operations = self.operations.load(Ordering::Relaxed);
        Abilities {
            threshold: self.threshold(),
            read: operations & 1 != 0,
            write: operations & 2 != 0,
        }
    }

    /// Smallest transfer in bytes that RDMA is worth here.
    #[inline]
    pub(crate) fn threshold(&self) -> u32 {
        self.threshold.load(Ordering::Relaxed)
    }

    /// Which end this is.
    #[inline]
    pub(crate) fn role(&self) -> Role {
        if self.role.load(Ordering::Relaxed) == Role::Connector as u8 {
            Role::Connector
        } else {
            Role::Acceptor
        }
    }

    /// Where its directions are, and its flags, at one moment. Acquire.
    #[inline(always)]
    pub(crate) fn state(&self) -> EndState {
        self.word.state()
    }

    /// True if any of these flags is set. Acquire.
    #[inline(always)]
    pub(crate) fn has(&self, flags: u32) -> bool {
        self.state().has(flags)
    }

    /// Where the direction is that this end sends in. Acquire.
    #[inline(always)]
    pub(crate) fn way_out(&self) -> WayOut {
        self.state().way_out()
    }

    /// Where the direction is that it receives in. Acquire.
    #[inline(always)]
    pub(crate) fn way_in(&self) -> WayIn {
        self.state().way_in()
    }

    /// Both directions begin on TCP. No other thread has seen this end.
    pub(in crate::switch) fn begin_on_tcp(&self) {
        self.word.begin_on_tcp();
    }

    /// The direction that this end sends in takes this step. Sequentially consistent. Under the send lock, or where the
    /// connection is over.
    pub(crate) fn step_out(&self, event: OutEvent) -> Option<EndState> {
        self.word.step_out(event)
    }

    /// The direction that it receives in takes this step. Sequentially consistent. Under the receive lock, or where TCP's
    /// stream is over.
    pub(crate) fn step_in(&self, event: InEvent) -> Option<EndState> {
        self.word.step_in(event)
    }

    /// The error of a connection that is broken: what the kernel reported, or that it was reset.
    pub(crate) fn broken_by(&self) -> Errno {
        let e = self.error.load(Ordering::Relaxed) as i32;
        Errno(if e == 0 { libc::ECONNRESET } else { e })
    }

    /// Sets flags; true if any of them was new. Sequentially consistent.
    pub(crate) fn set(&self, flags: u32) -> bool {
        self.word.set(flags)
    }

    /// Clears flags; true if any of them was set.
    pub(crate) fn clear(&self, flags: u32) -> bool {
        self.word.clear(flags)
    }
}
