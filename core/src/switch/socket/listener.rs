//! A listener: what its processes share, and who of them serves connectors on other hosts.

use crate::fabric;
use crate::sys::{file, process, time, Result, PAGE};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// How often (ns) it is looked whether the process lives that serves connectors on other hosts.
const LOOK_AT_SERVER: u64 = 1_000_000_000;

/// Shared by all processes that inherited the listener.
#[repr(C)]
struct Family {
    /// The process that serves connectors on other hosts; zero: none yet.
    server: AtomicU32,
    /// Those connectors.
    backlog: fabric::SharedBacklog,
}

/// See the module.
pub(crate) struct Listener {
    family: *mut Family,
    /// Where it listens, and whether for both families.
    address: (SocketAddr, bool),
    /// Another listener may have the same address.
    grouped: bool,
    /// Connectors on other hosts, from `Box::into_raw`; null: another process serves them, or nobody.
    serving: AtomicPtr<fabric::Serving>,
    /// Clock (ns) of the last look whether that process lives.
    looked_at: AtomicU64,
}

impl Listener {
    /// Of a TCP listener bound to `address`.
    pub(crate) fn open(address: SocketAddr, dual: bool, grouped: bool) -> Result<Self> {
        let family = file::map_shared(None, PAGE)?.cast();
        let (serving, looked_at) = (AtomicPtr::default(), AtomicU64::new(0));
        Ok(Self { family, address: (address, dual), grouped, serving, looked_at })
    }

    /// Serves connectors on other hosts from now on, unless another process does.
    pub(crate) fn serve(&self) {
        let server = self.family().server.load(Ordering::Relaxed);
        let us = process::pid();
        if server == us || self.grouped {
            return;
        }
        let (address, dual) = self.address;
        if server != 0 {
            let (now, before) = (time::now(), self.looked_at.load(Ordering::Relaxed));
            if now.saturating_sub(before) < LOOK_AT_SERVER {
                return;
            }
            self.looked_at.store(now, Ordering::Relaxed);
            if process::lives(server) {
                return;
            }
        }
        let ours = &self.family().server;
        if ours.compare_exchange(server, us, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            // SAFETY: the family's page is mapped until after the result is dropped.
            let serving = unsafe { fabric::serve(address, dual, &self.family().backlog) };
            let serving = serving.map_or(std::ptr::null_mut(), |s| Box::into_raw(Box::new(s)));
            // What is there is a parent's, from before a fork.
            self.serving.store(serving, Ordering::SeqCst);
        }
    }

    fn stop_serving(&self) {
        let serving = self.serving.swap(std::ptr::null_mut(), Ordering::SeqCst);
        if !serving.is_null() {
            // SAFETY: from Box::into_raw, here or, in a fork child's copy of that memory, in its parent.
            drop(unsafe { Box::from_raw(serving) });
        }
        let _ = self.family().server.compare_exchange(
            process::pid(),
            0,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }

    /// No connector on another host finds it any more, for whichever of its processes.
    pub(crate) fn retire(&self) {
        self.stop_serving();
    }

    /// The connectors on other hosts.
    pub(in crate::switch) fn shared_backlog(&self) -> &fabric::SharedBacklog {
        &self.family().backlog
    }

    fn family(&self) -> &Family {
        // SAFETY: mapped as long as the listener exists; all zero is a valid value.
        unsafe { &*self.family }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop_serving();
        // SAFETY: this is the last use in this process.
        unsafe { file::unmap(self.family.cast(), PAGE) };
    }
}
