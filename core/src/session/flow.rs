//! Credits and sequence numbers of one side of a session (A1, A15, A16, A17): which message may be sent, what its
//! header says, which header may be received. This module does no I/O, takes no lock, allocates nothing, and holds no
//! pointer: its state may lie in memory that several processes map. That memory must be out of the peer's reach.

use super::error::{NoCredit, ProtocolError};
use super::header::{Header, Kind};
use super::sync::{AtomicU32, AtomicU64, Ordering};

/// One side's state of a session.
///
/// Two locks of the caller guard it. Under the **send lock**: [`next_message`](Self::next_message),
/// publication of the message, [`sent`](Self::sent). Under the **receive lock**:
/// [`received`](Self::received), [`reposted`](Self::reposted). The accessors need none.
/// Where one side reads what the other lock guards, stores release and loads acquire, so that
/// whoever learns of a free buffer also sees that its last reader is done with it.
///
/// Every sequence number wraps around; they are compared by distance. A provider that finds the
/// buffer of a message by `sequence % buffers` needs a power of two for this.
#[repr(C)]
#[derive(Debug)]
pub struct Session {
    /// What we granted: high half PR + LRSQ (only grows), low half LRSQ. One word, so that a
    /// sender never sees a PR and an LRSQ of different moments. Receive lock.
    granted: AtomicU64,
    /// PR + LRSQ of the newest header received: the last sequence number we may send. Receive lock.
    limit: AtomicU32,
    /// LRSQ of the newest header received. Receive lock.
    acknowledged: AtomicU32,
    /// 1 once the peer's session request or accept has come. Receive lock.
    peer_open: AtomicU32,
    /// LSSQ. Send lock.
    last_sent: AtomicU32,
    /// PR + LRSQ of the newest header sent; minus LRSQ it is OtherSidesSendCredit. Send lock.
    advertised: AtomicU32,
    /// 1 once our session request or accept was sent. Send lock.
    open: AtomicU32,
    /// Buffers of one direction; the same for both. Never changes.
    buffers: u16,
    /// T of A16. Never changes.
    threshold: u16,
}

const fn pack(limit: u32, last_received: u32) -> u64 {
    (limit as u64) << 32 | last_received as u64
}

const fn unpack(granted: u64) -> (u32, u32) {
    ((granted >> 32) as u32, granted as u32)
}

/// `limit - sequence`, or 0 if the limit lies behind.
#[inline]
fn remaining(limit: u32, sequence: u32) -> u32 {
    (limit.wrapping_sub(sequence) as i32).max(0) as u32
}

impl Session {
    /// A session with `receive_buffers` message buffers per direction, ours all posted; nothing
    /// sent or received, no send credit before the peer's first message (A1).
    ///
    /// # Panics
    /// If `receive_buffers` is below 4: a credit update of at least 3 (A16) beside the last
    /// credit (A17) would never be due.
    pub const fn new(receive_buffers: u16) -> Session {
        assert!(receive_buffers >= 4, "a session needs at least 4 message buffers");
        let half = receive_buffers / 2;
        Session {
            granted: AtomicU64::new(pack(receive_buffers as u32, 0)),
            limit: AtomicU32::new(0),
            acknowledged: AtomicU32::new(0),
            peer_open: AtomicU32::new(0),
            last_sent: AtomicU32::new(0),
            advertised: AtomicU32::new(0),
            open: AtomicU32::new(0),
            buffers: receive_buffers,
            threshold: if half < 3 { 3 } else { half },
        }
    }

    /// An open session after `sequence` messages each way, all consumed: for wrap-around tests.
    #[cfg(test)]
    pub(super) fn resumed(receive_buffers: u16, sequence: u32) -> Session {
        let limit = sequence.wrapping_add(receive_buffers as u32);
        Session {
            granted: AtomicU64::new(pack(limit, sequence)),
            limit: AtomicU32::new(limit),
            acknowledged: AtomicU32::new(sequence),
            peer_open: AtomicU32::new(1),
            last_sent: AtomicU32::new(sequence),
            advertised: AtomicU32::new(limit),
            open: AtomicU32::new(1),
            ..Session::new(receive_buffers)
        }
    }

    /// Send credit: PR − (LSSQ − LRSQ) of the newest header received (A15). Exact under the send
    /// lock except that it may grow at any time.
    #[inline]
    pub fn credit(&self) -> u32 {
        remaining(self.limit.load(Ordering::Acquire), self.last_sent.load(Ordering::Relaxed))
    }

    /// The header of the next message, with PR and LRSQ of this moment. Changes nothing. Call
    /// under the send lock; the message must be published, or given up, under the same hold.
    ///
    /// # Errors
    /// [`NoCredit`]. Only a credit update, and the end of a suspension, may take the last credit (A17). The beginning of
    /// a suspension needs three. A session request or accept needs none; it must be the first message, and no other
    /// goes before it (A1).
    #[inline]
    pub fn next_message(&self, kind: Kind, length: u32) -> Result<Header, NoCredit> {
        let open = self.open.load(Ordering::Relaxed) != 0;
        let allowed = match kind {
            // Resume holds all else up. It takes the last credit only if its end, the acceptor, answered as well in
            // between: never at both ends at once.
            Kind::CreditUpdate | Kind::Resume => open && self.credit() >= 1,
            // So that Resume can follow and leave the last credit.
            Kind::Suspend => open && self.credit() >= 3,
            Kind::SessionRequest | Kind::SessionAccept => !open,
            _ => open && self.credit() >= 2,
        };
        if !allowed {
            return Err(NoCredit);
        }
        let (granted, last_received) = unpack(self.granted.load(Ordering::Acquire));
        Ok(Header {
            sequence: self.last_sent.load(Ordering::Relaxed).wrapping_add(1),
            last_received,
            posted: granted.wrapping_sub(last_received) as u16,
            kind,
            flags: kind.flags(),
            length,
        })
    }

    /// The message with `header` was published. Call under the send lock that was held since
    /// [`next_message`](Self::next_message). Sets LSSQ and OtherSidesSendCredit := PR (A16).
    ///
    /// A thread that takes the lock over from a dead holder first looks into the buffer of message
    /// LSSQ + 1, and calls this if that message was published: that number must not be used twice.
    #[inline]
    pub fn sent(&self, header: &Header) {
        // LSSQ comes last: if this process dies in between, the thread that takes over finds the message not yet sent.
        self.advertised.store(header.limit(), Ordering::Relaxed);
        if header.kind.opens_session() {
            self.open.store(1, Ordering::Relaxed);
        }
        self.last_sent.store(header.sequence, Ordering::Release);
    }

    /// The sequence number of the next message to receive. Exact under the receive lock.
    #[inline]
    pub fn expected(&self) -> u32 {
        self.last_received().wrapping_add(1)
    }

    /// Takes in the header of the next message, which the peer wrote: LRSQ + 1, PR − 1,
    /// OtherSidesSendCredit − 1, send credit renewed (A15, A16). Call under the receive lock,
    /// once per message, in order of sequence numbers.
    ///
    /// # Errors
    /// [`ProtocolError`] if an honest peer cannot have sent it; nothing has changed then, and the
    /// connection must be ended.
    #[inline]
    pub fn received(&self, header: &Header) -> Result<(), ProtocolError> {
        let (granted, last_received) = unpack(self.granted.load(Ordering::Relaxed));
        let sequence = last_received.wrapping_add(1);
        if header.sequence != sequence {
            return Err(ProtocolError::Sequence { expected: sequence, got: header.sequence });
        }
        if header.kind.opens_session() {
            if sequence != 1 {
                return Err(ProtocolError::AlreadyOpen(header.kind));
            }
        } else if self.peer_open.load(Ordering::Relaxed) == 0 {
            return Err(ProtocolError::NotOpen(header.kind));
        }
        if granted == last_received {
            return Err(ProtocolError::Overrun { sequence });
        }
        if header.posted > self.buffers {
            return Err(ProtocolError::Posted { posted: header.posted, buffers: self.buffers });
        }
        let acknowledged = self.acknowledged.load(Ordering::Relaxed);
        let last_sent = self.last_sent.load(Ordering::Acquire);
        // One more than LSSQ: the answer to a message may come before its sender reaches `sent`.
        let unacknowledged = last_sent.wrapping_add(1).wrapping_sub(acknowledged);
        if header.last_received.wrapping_sub(acknowledged) > unacknowledged {
            return Err(ProtocolError::LastReceived {
                got: header.last_received,
                before: acknowledged,
                sent: last_sent,
            });
        }
        let limit = self.limit.load(Ordering::Relaxed);
        if (header.limit().wrapping_sub(limit) as i32) < 0 {
            return Err(ProtocolError::CreditWithdrawn { limit: header.limit(), before: limit });
        }
        // LRSQ last: if we die in between, the message is received again, with the same result.
        self.acknowledged.store(header.last_received, Ordering::Relaxed);
        if header.kind.opens_session() {
            self.peer_open.store(1, Ordering::Relaxed);
        }
        self.limit.store(header.limit(), Ordering::Release);
        self.granted.store(pack(granted, sequence), Ordering::Release);
        Ok(())
    }

    /// `count` received messages were consumed and their buffers posted again (S1). Call under
    /// the receive lock. More than what is outstanding is not counted.
    ///
    /// Where buffers are used cyclically they are posted again in order: a control message that
    /// lies behind unread data is counted together with that data, never before it, because the
    /// buffer which the peer would fill next is the oldest one.
    #[inline]
    pub fn reposted(&self, count: u16) {
        let (granted, last_received) = unpack(self.granted.load(Ordering::Relaxed));
        let posted = granted.wrapping_sub(last_received);
        let count = u32::from(count).min(u32::from(self.buffers).saturating_sub(posted));
        self.granted.store(pack(granted.wrapping_add(count), last_received), Ordering::Release);
    }

    /// Whether a credit update is due (A16): the peer's credit is below T and the posted receives
    /// exceed it by at least T, so that the update gives at least T. Never before our session
    /// message was sent. Exact under both locks; under neither it may be too early or too late
    /// by the operation that runs at the moment, so ask again under the send lock before sending.
    #[inline]
    pub fn credit_update_due(&self) -> bool {
        let threshold = u32::from(self.threshold);
        let (granted, last_received) = unpack(self.granted.load(Ordering::Acquire));
        let theirs = remaining(self.advertised.load(Ordering::Relaxed), last_received);
        theirs < threshold
            && remaining(granted, last_received) >= theirs + threshold
            && self.open.load(Ordering::Relaxed) != 0
    }

    /// OtherSidesSendCredit: how many messages the peer may still send, as far as our newest
    /// header told it (A16).
    #[inline]
    pub fn other_sides_credit(&self) -> u32 {
        // LRSQ first: it only grows, so the other order could count a message twice.
        let last_received = self.last_received();
        remaining(self.advertised.load(Ordering::Relaxed), last_received)
    }

    /// PR: receives posted at this moment.
    #[inline]
    pub fn posted(&self) -> u16 {
        let (granted, last_received) = unpack(self.granted.load(Ordering::Acquire));
        granted.wrapping_sub(last_received) as u16
    }

    /// LSSQ: the sequence number of the last message sent; 0 before the first.
    #[inline]
    pub fn last_sent(&self) -> u32 {
        self.last_sent.load(Ordering::Acquire)
    }

    /// LRSQ: the sequence number of the last message received; 0 before the first.
    #[inline]
    pub fn last_received(&self) -> u32 {
        unpack(self.granted.load(Ordering::Acquire)).1
    }

    /// T: a credit update goes out below this credit and gives at least this much (A16).
    #[inline]
    pub fn threshold(&self) -> u16 {
        self.threshold
    }
}
