//! What the processes that accept from one listener know of the connectors that wait there: one of them has the
//! listener of each adapter, and whoever accepts a TCP connection claims its link from that one.

use super::berth;
use super::mailbox::{Address, Berth, Message};
use super::rendezvous::Claim;
use super::{helper, mailbox, no_fork};
use crate::sys::{process, time};
use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Longest wait (ns) for the process that has the listener, and for the connector that it sends.
const PATIENCE: u64 = 500_000_000;
/// How soon (ns) a claim is repeated.
const AGAIN: u64 = 20_000_000;
const PAUSE: u64 = 20_000;
/// Counters, each for some hosts.
const HOSTS: usize = 64;

/// See the module. In memory of these processes alone; all zero is a valid start.
#[derive(Debug)]
#[repr(C)]
pub struct Board {
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

impl Board {
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

    /// True if a claim is one of a process that knows this board.
    pub(super) fn knows(&self, secret: u64) -> bool {
        self.secret.load(Relaxed) == secret
    }

    /// The link of a TCP connection that this process accepted, if one waits at another: its connector comes
    /// here.
    pub(super) fn claim(&self, tuple: &[u8], from: IpAddr, local: IpAddr) -> Option<Claim> {
        let server = self.mailbox.load(Acquire);
        if server == 0 || self.waiting[place(from)].load(SeqCst) == 0 {
            return None;
        }
        let gate = no_fork();
        let Some((socket, own)) = helper::mailbox() else {
            log::warn!("a connection over RDMA cannot be taken");
            return None;
        };
        let nowhere = Berth { number: 0, cookie: [0; 2], mailbox: own, pid: process::pid() };
        let berth = berth::open_for_offer(local).unwrap_or(nowhere);
        let secret = self.secret.load(Relaxed);
        let message = Message::Claim { secret, berth, from, tuple: tuple.to_vec() };
        if berth.number == 0 {
            mailbox::send(socket, server, &message);
            return None;
        }
        drop(gate);
        let (start, mut told) = (time::now(), 0);
        loop {
            let gate = no_fork();
            let now = time::now();
            if now - told > AGAIN {
                told = now;
                if !mailbox::send(socket, server, &message) {
                    break;
                }
            }
            match berth::offer(berth.cookie) {
                Ok((link, geometry)) if link.take() => return Some(Claim { link, geometry }),
                Ok((link, _)) => {
                    link.close_within(None);
                    return None;
                }
                Err(false) => return None,
                Err(true) if now - start > PATIENCE => break,
                Err(true) => {}
            }
            drop(gate);
            time::sleep(PAUSE);
        }
        log::info!("a connection over RDMA did not come from the process that has the listener");
        let _gate = no_fork();
        berth::forget(berth.cookie);
        None
    }
}
