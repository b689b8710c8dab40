//! Listeners over RDMA beside the program's TCP listeners, one for each adapter, also of devices that were removed and
//! are there again.

use super::shared_backlog::SharedBacklog;
use super::state::{state, Arrival, BacklogRef, Listening, Served};
use crate::fabric::adapters::{self, Fabric};
use crate::fabric::fork_gate::{generation, no_fork};
use crate::fabric::helper;
use crate::fabric::link::Port;
use crate::fabric::mailbox::Address;
use crate::fabric::reception::Reception;
use crate::provider::interface::Info;
use crate::sys::process::SignalsHeld;
use crate::sys::time;
use std::net::{IpAddr, SocketAddr};

/// Connection requests that wait for the helper.
const BACKLOG: u32 = 1024;
/// How often (ns) it is looked whether a device that was removed is there again.
const SEARCH: u64 = 5_000_000_000;

/// A TCP listener whose connectors are served, until it is dropped.
pub(crate) struct Serving {
    number: u64,
    /// The process it is of ([`generation`]).
    owner: u32,
    backlog: BacklogRef,
    mailbox: Address,
}

// SAFETY: it names atomics.
unsafe impl Sync for Serving {}

/// Serves the connectors of a TCP listener bound to `address` (`dual`: of both families).
/// Of the processes that accept from the listener, which share `backlog`, one at a time does.
///
/// # Safety
/// `backlog` stays valid until the result is dropped.
pub(crate) unsafe fn serve(
    address: SocketAddr,
    dual: bool,
    backlog: &SharedBacklog,
) -> Option<Serving> {
    let _held = SignalsHeld::new();
    let _gate = no_fork();
    let fabric = adapters::fabric()?;
    let number = {
        let mut state = state();
        state.next += 1;
        state.next
    };
    let (_, mailbox) = helper::mailbox()?;
    let backlog = BacklogRef(backlog);
    let serving = Serving { number, owner: generation(), backlog, mailbox };
    backlog.get().begin(mailbox);
    let served = Served { number, address, dual, backlog };
    state().servings.push(served);
    let mut any = false;
    for local in served.addresses(fabric) {
        any |= fabric.port(local).is_some_and(|port| served.listen_at(port));
    }
    if !any {
        state().servings.retain(|one| one.number != number);
    }
    any.then_some(serving)
}

impl Served {
    fn families(&self) -> u32 {
        if self.dual {
            Info::IPV4 | Info::IPV6
        } else if self.address.is_ipv4() {
            Info::IPV4
        } else {
            Info::IPV6
        }
    }

    /// True if connectors of that adapter are served.
    fn covers(&self, local: IpAddr) -> bool {
        let ip = self.address.ip();
        let family = if local.is_ipv4() { Info::IPV4 } else { Info::IPV6 };
        if ip.is_unspecified() {
            self.families() & family != 0
        } else {
            ip.to_canonical() == local
        }
    }

    /// The adapters' addresses.
    fn addresses(&self, fabric: &Fabric) -> Vec<IpAddr> {
        if !self.address.ip().is_unspecified() {
            return vec![self.address.ip().to_canonical()];
        }
        fabric.addresses().filter(|ip| self.covers(*ip)).collect()
    }

    /// Listens at one adapter; false if that cannot be.
    fn listen_at(&self, port: &'static Port) -> bool {
        let is_there =
            |one: &Listening| one.serving == self.number && std::ptr::eq(one.reception.port, port);
        if state().listening.iter().any(is_there) {
            return true;
        }
        let at = SocketAddr::new(port.device.local, self.address.port());
        match Reception::open(port, at, BACKLOG) {
            Ok(reception) => {
                let descriptor = reception.descriptor();
                let (serving, backlog) = (self.number, self.backlog);
                let one = Listening { serving, reception, backlog };
                let mut state = state();
                if port.device.is_retired() {
                    return false;
                }
                if state.servings.iter().all(|one| one.number != serving) {
                    // It was dropped meanwhile.
                    return true;
                }
                state.listening.push(one);
                drop(state);
                helper::watch(descriptor);
                true
            }
            Err(why) => {
                log::info!("not listening over RDMA at {}: {why}", port.device.local);
                false
            }
        }
    }
}

/// A port is retired: nobody comes there any more, until its device is there again. By the helper.
pub(in crate::fabric) fn retire(port: &'static Port) {
    let mut state = state();
    let before = state.listening.len();
    state.listening.retain(|one| !std::ptr::eq(one.reception.port, port));
    if state.listening.len() < before && !state.lost.contains(&port.device.local) {
        state.lost.push(port.device.local);
        state.searched = time::now();
    }
}

/// How long (ns) until [`search`] is due; `None`: nothing is lost.
pub(in crate::fabric) fn next_search() -> Option<u64> {
    let state = state();
    let passed = time::now().saturating_sub(state.searched);
    (!state.lost.is_empty()).then_some(SEARCH.saturating_sub(passed).max(1_000_000))
}

/// Looks whether devices that were removed are there again, and listens there if so. By the helper.
pub(in crate::fabric) fn search() {
    let (lost, servings) = {
        let mut state = state();
        if state.lost.is_empty() || time::now() - state.searched < SEARCH {
            return;
        }
        state.searched = time::now();
        (std::mem::take(&mut state.lost), state.servings.clone())
    };
    let Some(fabric) = adapters::fabric() else { return };
    for local in lost {
        let mut wanted = servings.iter().filter(|one| one.covers(local)).peekable();
        if wanted.peek().is_none() {
            continue;
        }
        fabric.look_again(local);
        let Some(port) = fabric.port(local) else {
            state().lost.push(local);
            continue;
        };
        if wanted.filter(|one| !one.listen_at(port)).count() > 0 {
            state().lost.push(local);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.owner != generation() {
            // In a fork child: the parent's.
            return;
        }
        let _held = SignalsHeld::new();
        let _gate = no_fork();
        self.backlog.get().end(self.mailbox);
        let mut state = state();
        state.servings.retain(|one| one.number != self.number);
        let (gone, kept) = state.listening.drain(..).partition(|l| l.serving == self.number);
        state.listening = kept;
        let (late, kept) = state.arrivals.drain(..).partition(|a| a.serving == self.number);
        state.arrivals = kept;
        drop(state);
        let (gone, late): (Vec<Listening>, Vec<Arrival>) = (gone, late);
        drop(gone);
        for one in late {
            one.dismiss();
        }
    }
}
