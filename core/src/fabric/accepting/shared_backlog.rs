//! What the processes that accept from one listener share about the connectors that wait there: one of them has the
//! listener of each adapter, and whoever accepts a TCP connection claims its link from that one.

use crate::fabric::mailbox::Address;
use crate::sys::process;
use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Counters, each for some hosts.
const HOSTS: usize = 64;

/// See the module. In memory of these processes alone; all zero is a valid start.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SharedBacklog {
    /// Of the helper of the process that has the listeners; zero: nobody has.
    mailbox: AtomicU64,
    /// Claims carry it.
    secret: AtomicU64,
    /// Links that wait to be accepted, by the host that they come from.
    waiting: [AtomicU32; HOSTS],
}

fn place(from: IpAddr) -> usize {
    let bits = match from.to_canonical() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() ^ ip.to_bits() >> 64) as u64,
    };
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

impl SharedBacklog {
    /// This process has the listeners from now on.
    pub(super) fn begin(&self, mailbox: Address) {
        for count in &self.waiting {
            count.store(0, Relaxed);
        }
        self.secret.store(process::random()[0], Relaxed);
        self.mailbox.store(mailbox, SeqCst);
    }

    /// It has not any more.
    pub(super) fn end(&self, mailbox: Address) {
        let _ = self.mailbox.compare_exchange(mailbox, 0, SeqCst, SeqCst);
    }

    /// A link from that host waits. Before the host can know.
    pub(super) fn arrives(&self, from: IpAddr) {
        self.waiting[place(from)].fetch_add(1, SeqCst);
    }

    /// It does not any more.
    pub(super) fn leaves(&self, from: IpAddr) {
        self.waiting[place(from)].fetch_sub(1, SeqCst);
    }

    /// True if a claim is one of a process that knows this backlog.
    pub(super) fn knows(&self, secret: u64) -> bool {
        self.secret.load(Relaxed) == secret
    }

    /// What claims carry now.
    pub(super) fn secret(&self) -> u64 {
        self.secret.load(Relaxed)
    }

    /// Where the process that has the listeners is told of claims; `None`: nobody has, or no link from that host waits.
    pub(super) fn server(&self, from: IpAddr) -> Option<Address> {
        let server = self.mailbox.load(Acquire);
        (server != 0 && self.waiting[place(from)].load(SeqCst) != 0).then_some(server)
    }
}
