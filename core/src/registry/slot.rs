//! A connection's slot: which connection it is, and what it has done so far, in atomics.
//!
//! The writer stores, and readers in other processes load. Neither waits for the other.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::RawFd;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

use super::control::DirectionControl;
use super::counter::{Counter, DirectionCounts, Gauge, SharedCounter};
use super::transfers::Transfers;
use crate::reason::Reason;

/// Declares an enum stored as a number, with the name `sanctl` prints.
macro_rules! stored {
    ($(#[$type_doc:meta])* $type:ident { $($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)+ }) => {
        $(#[$type_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $type {
            $($(#[$doc])* $name = $number,)+
        }

        impl $type {
            /// The stable name, as `sanctl status --json` shows it.
            pub const fn name(self) -> &'static str {
                match self { $($type::$name => $text,)+ }
            }

            pub(super) const fn from_u32(number: u32) -> Option<Self> {
                match number { $($number => Some($type::$name),)+ _ => None }
            }
        }
    };
}

stored! {
    /// What carries a connection's bytes.
    Provider {
        /// The kernel's TCP.
        Tcp = 0, "tcp";
        /// Shared memory on this host.
        Shm = 1, "shm";
        /// RDMA.
        Verbs = 2, "verbs";
    }
}

stored! {
    /// Where a connection is in its life, named after the TCP states. 0 marks a free slot.
    State {
        /// A listening socket.
        Listen = 1, "listen";
        /// connect has begun and has not finished.
        Connecting = 2, "connecting";
        /// Open in both directions.
        Established = 3, "established";
        /// The peer has ended its direction.
        CloseWait = 4, "close-wait";
        /// We have ended our direction.
        FinWait = 5, "fin-wait";
        /// Both directions have ended.
        Closing = 6, "closing";
        /// Reset, or ended by an error.
        Failed = 7, "failed";
    }
}

/// Which connection it is, and where it is, as [`Slot::publish`] stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The program's descriptor.
    pub fd: RawFd,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address. For a listener it is unspecified, with port 0.
    pub peer: SocketAddr,
    /// What carries the bytes.
    pub provider: Provider,
    /// Why it is carried so.
    pub reason: Reason,
    /// Where it is in its life.
    pub state: State,
}

/// An address: 16 bytes (IPv4 as a mapped IPv6 address), then family and port, then the scope.
#[derive(Debug, Default)]
#[repr(C)]
struct Address {
    ip: [AtomicU64; 2],
    family_and_port: AtomicU32,
    scope: AtomicU32,
}

impl Address {
    fn store(&self, address: &SocketAddr) {
        let (ip, family, scope) = match address {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 4, 0),
            SocketAddr::V6(v6) => (*v6.ip(), 6, v6.scope_id()),
        };
        let bits = ip.to_bits();
        self.ip[0].store((bits >> 64) as u64, Ordering::Relaxed);
        self.ip[1].store(bits as u64, Ordering::Relaxed);
        let family_and_port = family << 16 | u32::from(address.port());
        self.family_and_port.store(family_and_port, Ordering::Relaxed);
        self.scope.store(scope, Ordering::Relaxed);
    }

    /// `None` when the stored family is neither IPv4 nor IPv6.
    fn load(&self) -> Option<SocketAddr> {
        let high = u128::from(self.ip[0].load(Ordering::Relaxed));
        let low = u128::from(self.ip[1].load(Ordering::Relaxed));
        let ip = Ipv6Addr::from_bits(high << 64 | low);
        let family_and_port = self.family_and_port.load(Ordering::Relaxed);
        let port = family_and_port as u16;
        match family_and_port >> 16 {
            4 => Some(SocketAddr::new(IpAddr::V4(ip.to_ipv4_mapped()?), port)),
            6 => {
                let scope = self.scope.load(Ordering::Relaxed);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)))
            }
            _ => None,
        }
    }

    fn copy_from(&self, other: &Address) {
        for (to, from) in self.ip.iter().zip(&other.ip) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        copy32(&self.family_and_port, &other.family_and_port);
        copy32(&self.scope, &other.scope);
    }
}

fn copy32(to: &AtomicU32, from: &AtomicU32) {
    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// One connection. Words that senders write and words that receivers write lie in different cache lines.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Slot {
    /// Odd while the identity below changes. It is a sequence lock: a reader that finds a change tries again.
    sequence: AtomicU64,
    fd: AtomicU32,
    state: AtomicU32,
    provider: AtomicU32,
    reason: AtomicU32,
    local: Address,
    peer: Address,
    /// Written by `sanctl`: one more than the sequence number of the identity that is to go back to TCP. 0 if none is.
    pub(super) detach: AtomicU64,
    /// Twice the inode of the memory that both ends share or last shared, and one more at the acceptor's end. 0 if there was none.
    session: AtomicU64,
    _reserved_identity: [AtomicU64; 5],

    /// What we sent.
    pub sent: DirectionCounts,
    /// Kernel calls made to wake the peer.
    pub wakeups_sent: SharedCounter,
    /// Events that needed no kernel call, because nobody slept (A18). Counted by senders.
    pub wakeups_avoided: Counter,
    /// Send credit at the moment (A15).
    pub credits: Gauge,
    /// Bytes in the send buffer at the moment (A19).
    pub buffered_bytes: Gauge,
    /// Which process controls sending (D2).
    pub send_control: DirectionControl,

    /// What we received.
    pub received: DirectionCounts,
    /// Wake-ups from the peer that were taken off the anchor.
    pub wakeups_received: SharedCounter,
    /// Credit updates sent (A16).
    pub credit_updates_sent: SharedCounter,
    /// Which process controls receiving (D2).
    pub receive_control: DirectionControl,
    /// Times this process suspended the session to take control (D4).
    pub suspensions: SharedCounter,
    /// How long (ns) all these suspensions took.
    pub suspended: SharedCounter,

    /// What is known of RDMA, its modes, and the sizes of buffers.
    pub transfers: Transfers,
}

impl Slot {
    pub(super) const fn new() -> Slot {
        const fn zero() -> AtomicU64 {
            AtomicU64::new(0)
        }
        const fn address() -> Address {
            Address {
                ip: [zero(), zero()],
                family_and_port: AtomicU32::new(0),
                scope: AtomicU32::new(0),
            }
        }
        const fn direction() -> DirectionCounts {
            DirectionCounts { bytes: Counter(zero()), messages: Counter(zero()) }
        }
        Slot {
            sequence: zero(),
            fd: AtomicU32::new(0),
            state: AtomicU32::new(0),
            provider: AtomicU32::new(0),
            reason: AtomicU32::new(0),
            local: address(),
            peer: address(),
            detach: zero(),
            session: zero(),
            _reserved_identity: [const { AtomicU64::new(0) }; 5],
            sent: direction(),
            wakeups_sent: SharedCounter(zero()),
            wakeups_avoided: Counter(zero()),
            credits: Gauge(zero()),
            buffered_bytes: Gauge(zero()),
            send_control: DirectionControl::new(),
            received: direction(),
            wakeups_received: SharedCounter(zero()),
            credit_updates_sent: SharedCounter(zero()),
            receive_control: DirectionControl::new(),
            suspensions: SharedCounter(zero()),
            suspended: SharedCounter(zero()),
            transfers: Transfers::new(),
        }
    }

    /// Makes the connection visible, or replaces what was said about it. One caller at a time.
    pub(super) fn publish(&self, identity: &Identity) {
        self.change(|| {
            self.local.store(&identity.local);
            self.peer.store(&identity.peer);
            self.set_fd(identity.fd);
            self.set_provider(identity.provider);
            let _ = (self.set_reason(identity.reason), self.set_state(identity.state));
        });
    }

    /// Changes the state only. True if it was another one.
    pub(super) fn set_state(&self, state: State) -> bool {
        let before = self.state.load(Ordering::Relaxed);
        self.state.store(state as u32, Ordering::Relaxed);
        before != state as u32
    }

    /// Changes the provider only.
    #[inline]
    pub(crate) fn set_provider(&self, provider: Provider) {
        self.provider.store(provider as u32, Ordering::Relaxed);
    }

    /// Changes the reason only. True if it was another one.
    pub(super) fn set_reason(&self, reason: Reason) -> bool {
        let before = self.reason.load(Ordering::Relaxed);
        self.reason.store(reason.as_u32(), Ordering::Relaxed);
        before != reason.as_u32()
    }

    /// Changes the descriptor only.
    #[inline]
    pub(crate) fn set_fd(&self, fd: RawFd) {
        self.fd.store(fd as u32, Ordering::Relaxed);
    }

    /// Both ends use memory that has this inode. Their addresses may not tell that they are one connection's (NAT).
    pub(crate) fn set_session(&self, inode: u64, is_acceptor: bool) {
        self.session.store(inode << 1 | u64::from(is_acceptor), Ordering::Relaxed);
    }

    /// What [`set_session`](Self::set_session) noted.
    pub(super) fn session(&self) -> Option<u64> {
        Some(self.session.load(Ordering::Relaxed)).filter(|session| session >> 1 != 0)
    }

    /// The descriptor. The process itself calls this, and need not check it.
    pub(super) fn fd(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed) as RawFd
    }

    /// The reason. The process itself calls this.
    pub(super) fn reason(&self) -> Option<Reason> {
        Reason::from_u32(self.reason.load(Ordering::Relaxed))
    }

    /// True if `sanctl detach` asked this connection to go back to TCP.
    pub(crate) fn is_asked_to_detach(&self) -> bool {
        let asked = self.detach.load(Ordering::Relaxed);
        asked != 0 && Some(asked - 1) == self.stable_sequence()
    }

    /// The request was served, or cannot be.
    pub(crate) fn detach_was_heard(&self) {
        self.detach.store(0, Ordering::Relaxed);
    }

    /// Runs `store` between the two steps of the sequence lock. The release fence keeps its stores after that of the
    /// odd number. The release store of the even number keeps them before it.
    fn change(&self, store: impl FnOnce()) {
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        store();
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
    }

    /// Takes the connection out of sight.
    pub(super) fn hide(&self) {
        self.change(|| self.state.store(0, Ordering::Relaxed));
    }

    /// Sets all counts to zero for a new connection. The slot is hidden.
    pub(super) fn reset(&self) {
        self.session.store(0, Ordering::Relaxed);
        let controls = [&self.send_control, &self.receive_control];
        let suspended = [&self.suspensions.0, &self.suspended.0];
        let own = controls.into_iter().flat_map(DirectionControl::counts).chain(suspended);
        for counter in self.counts().chain(own) {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// The address of the first count. It may be overwritten while the slot is hidden.
    pub(super) fn counts_address(&self) -> *mut u8 {
        self.sent.bytes.0.as_ptr().cast()
    }

    /// All counts that a fork child takes over.
    fn counts(&self) -> impl Iterator<Item = &AtomicU64> {
        let own = [
            &self.sent.bytes.0,
            &self.sent.messages.0,
            &self.wakeups_sent.0,
            &self.wakeups_avoided.0,
            &self.credits.0,
            &self.buffered_bytes.0,
            &self.received.bytes.0,
            &self.received.messages.0,
            &self.wakeups_received.0,
            &self.credit_updates_sent.0,
        ];
        own.into_iter().chain(self.transfers.counts())
    }

    /// Copies another process's slot into this one, which nobody reads yet. The copy leaves out which process has
    /// control.
    ///
    /// The other process may be changing its identity. This tries so many times, and then takes the copy as it is,
    /// because the thread that was changing it may be waiting for this one.
    pub(super) fn copy_from(&self, other: &Slot) {
        for _ in 0..1000 {
            let before = other.stable_sequence();
            for (to, from) in self.identity32().into_iter().zip(other.identity32()) {
                copy32(to, from);
            }
            self.local.copy_from(&other.local);
            self.peer.copy_from(&other.peer);
            self.session.store(other.session.load(Ordering::Relaxed), Ordering::Relaxed);
            fence(Ordering::Acquire);
            if before.is_some() && before == other.stable_sequence() {
                break;
            }
            std::hint::spin_loop();
        }
        for (to, from) in self.counts().zip(other.counts()) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn identity32(&self) -> [&AtomicU32; 4] {
        [&self.fd, &self.state, &self.provider, &self.reason]
    }

    /// The sequence number. `None` while the identity changes.
    pub(super) fn stable_sequence(&self) -> Option<u64> {
        Some(self.sequence.load(Ordering::Acquire)).filter(|sequence| sequence % 2 == 0)
    }

    /// True when no connection is published here.
    pub(super) fn is_hidden(&self) -> bool {
        self.state.load(Ordering::Relaxed) == 0
    }

    /// What is published here, or the name of the field that makes no sense.
    pub(super) fn identity(&self) -> Result<Identity, &'static str> {
        let load = |field: &AtomicU32| field.load(Ordering::Relaxed);
        Ok(Identity {
            fd: load(&self.fd) as RawFd,
            local: self.local.load().ok_or("local address")?,
            peer: self.peer.load().ok_or("peer address")?,
            provider: Provider::from_u32(load(&self.provider)).ok_or("provider")?,
            reason: Reason::from_u32(load(&self.reason)).ok_or("reason")?,
            state: State::from_u32(load(&self.state)).ok_or("state")?,
        })
    }
}

static SPARE: Slot = Slot::new();

/// The slot of connections that have none of their own, because there is no registry, or because it is full.
///
/// It lies in this process's private memory, and nobody reads it. So code that counts never has to ask whether there is
/// a slot.
pub(crate) fn spare() -> &'static Slot {
    &SPARE
}
