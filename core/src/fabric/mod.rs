//! Connections over a provider's queue pairs: two ends that do not share memory.
//!
//! Each end has a segment of its own, in the layout of shared memory, and sees its peer in it. A
//! [`Link`] plays the peer's part there: what this end publishes in its segment goes out as
//! [`frame`]s, and what frames bring is published as the peer would have done it. So the session, the
//! streams and their readiness are the same over every provider, and a fork child may use a
//! connection whose queue pair is its parent's.
//!
//! - [`frame`]: the form of what is sent
//! - [`memory`]: registered buffers
//! - [`port`]: one adapter: its completion queue, the shared receive queue, the links
//! - [`link`]: one connection
//! - [`connect`]: asks for a link before TCP connects; [`reception`]: who asks for one; [`rendezvous`]: which link belongs to which accepted
//!   connection (design 2)
//! - [`board`]: which of several processes that accept from one listener gets a link
//! - [`request`]: what a connection request says
//! - [`berth`]: where connections come to that this process asked for
//! - [`hearing`]: who is woken when something completes
//! - [`helper`]: the thread that goes on where the program is away; [`mailbox`]: what those of several
//!   processes say to each other
//!
//! Must not know of sockets, descriptors of the program or waiting.

mod berth;
mod board;
mod connect;
mod frame;
mod hearing;
mod helper;
mod link;
mod mailbox;
mod memory;
mod port;
mod reception;
mod rendezvous;
mod request;

#[cfg(test)]
mod returning_tests;
#[cfg(test)]
mod tests;

pub use board::Board;
pub use connect::connect;
pub use hearing::{Ear, Sleeper};
pub use link::{Controller, Link};
pub use rendezvous::{accept, serve, Claim, Serving};
pub use request::geometry_of;

use crate::provider::interface::catalogue::Catalogue;
use crate::provider::interface::client::Provider;
use crate::provider::interface::library::Library;
use crate::sys::{file, packet, time, Errno};
use port::Port;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// How long (ns) it is believed that an address has no adapter.
const ABSENCE: u64 = 60_000_000_000;
/// How long (ns) the exit of a process waits for peers to take what it sent.
const PATIENCE: u64 = 5_000_000_000;
/// Where the kernel lists RDMA devices: without one no provider is loaded.
const DEVICES: &str = "/sys/class/infiniband";
/// The provider's library, beside this one.
const LIBRARY: &str = "libsanshim_verbs.so";

/// An adapter's address, and the adapter in use or since when there is none.
type Place = (IpAddr, Result<&'static Port, u64>);

/// The fabric of this process: what its provider serves.
struct Fabric {
    provider: Provider,
    ports: Mutex<Vec<Place>>,
}

/// Who else may use a link that one process closed: its fork relatives.
pub trait Users: Send {
    /// True while they do.
    fn are_there(&self) -> bool;
}

/// What this process found; never freed. A fork child looks for itself: what its parent found is its parent's.
static FABRIC: AtomicPtr<OnceLock<Option<Fabric>>> = AtomicPtr::new(std::ptr::null_mut());
/// Held for reading by who makes, changes or ends what is the process's own, and for writing over a fork: so the child
/// finds no lock of ours, nor of a provider's, taken by a thread that it does not have. Before all other
/// locks of this module.
static FORK: RwLock<()> = RwLock::new(());
/// What the configuration allows, if there may be something to use ([`Source`]).
static SOURCE: AtomicU32 = AtomicU32::new(0);

/// Changes in every fork child.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Which process of a family this is.
#[inline]
fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Where the fabric's provider comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The library for RDMA, beside this one.
    Library = 1,
    /// The objects of shared memory, which lead to this host: so that all of this runs without a device.
    SharedMemory = 2,
}

/// Allows the use of a provider for connections, if there may be any: not on a host without RDMA devices, or without
/// the library. At the start, before the program has threads, or forbids itself anything.
///
/// `calls` is for connections that go back to TCP.
pub fn enable(source: Source, calls: HelperCalls) {
    let is_there = || {
        std::fs::read_dir(DEVICES).is_ok_and(|mut devices| devices.next().is_some())
            && own_folder().is_some_and(|folder| folder.join(LIBRARY).exists())
    };
    if source == Source::SharedMemory || is_there() {
        let _ = CALLS.set(calls);
        SOURCE.store(source as u32, Ordering::Relaxed);
    }
}

/// What the helper has done where the program does not look. It holds no lock of this module then, so that the switch may take
/// its own, which must be free within moments.
#[derive(Debug)]
pub struct HelperCalls {
    /// Goes on with a connection that its peer brings back to TCP; true: once more in a moment.
    pub come_to: fn(&Link) -> bool,
    /// Does what was asked for from outside; true: once more in a moment.
    pub serve_requests: fn() -> bool,
    /// Others may [`call`] the helper there.
    pub reachable: fn(u64),
}

static CALLS: OnceLock<HelperCalls> = OnceLock::new();

/// Has the helper of another process, which is reachable there, look for what it was asked for.
///
/// # Errors
/// ECONNREFUSED where it is gone, or in another network namespace; EAGAIN where it was called often enough.
pub fn call(helper: u64) -> Result<(), Errno> {
    let from = packet::datagrams()?;
    let called = mailbox::kick(from, helper);
    file::close(from);
    called
}

/// True if the provider is that of shared memory.
pub fn is_of_this_host() -> bool {
    SOURCE.load(Ordering::Relaxed) == Source::SharedMemory as u32
}

/// No fork until the result is dropped.
fn no_fork() -> RwLockReadGuard<'static, ()> {
    FORK.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held over a fork, by parent and child.
pub struct Forking {
    _nobody_else: RwLockWriteGuard<'static, ()>,
}

/// Before a fork. Signals are held back.
pub fn before_fork() -> Forking {
    Forking { _nobody_else: FORK.write().unwrap_or_else(PoisonError::into_inner) }
}

impl Forking {
    /// In the child: it begins anew. Connections that exist are carried by the process that made them.
    pub fn in_child(self) {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        FABRIC.store(std::ptr::null_mut(), Ordering::Relaxed);
        rendezvous::after_fork_in_child();
        berth::after_fork_in_child();
        helper::after_fork_in_child();
    }
}

/// Before the process exits: what closed links have not delivered goes out, as long as it takes,
/// within reason; then nobody is left to send it.
pub fn exiting() {
    helper::finish(PATIENCE);
}

/// True if a provider may be there: cheap.
#[inline]
pub fn may_exist() -> bool {
    SOURCE.load(Ordering::Relaxed) != 0
}

fn fabric() -> Option<&'static Fabric> {
    if !may_exist() {
        return None;
    }
    found()
        .get_or_init(|| {
            let library = load().inspect_err(|why| log::warn!("no RDMA: {why}")).ok()?;
            if let Some(why) = library.unusable() {
                log::warn!("no RDMA: {why}");
                return None;
            }
            let provider = Provider::open(&library).ok()?;
            Some(Fabric { provider, ports: Mutex::new(Vec::new()) })
        })
        .as_ref()
}

/// A port is retired.
fn forget(port: &Port) {
    if let Some(fabric) = fabric() {
        let is_it =
            |one: &Result<&'static Port, u64>| matches!(one, Ok(one) if std::ptr::eq(*one, port));
        fabric.ports().retain(|(_, one)| !is_it(one));
    }
}

fn found() -> &'static OnceLock<Option<Fabric>> {
    let mut at = FABRIC.load(Ordering::Acquire);
    if at.is_null() {
        let fresh = Box::into_raw(Box::default());
        match FABRIC.compare_exchange(at, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => at = fresh,
            Err(other) => {
                // SAFETY: made above; nobody knows it.
                drop(unsafe { Box::from_raw(fresh) });
                at = other;
            }
        }
    }
    // SAFETY: never freed once it is there.
    unsafe { &*at }
}

/// The provider of the source.
fn load() -> Result<Arc<Library>, String> {
    let (name, folder) = match is_of_this_host() {
        true => ("shm", None),
        false => ("verbs", Some(own_folder().ok_or("the folder of libsanshim.so is not known")?)),
    };
    let catalogue = Catalogue::of(crate::provider::BUILT_IN, folder.as_deref());
    let entry = catalogue.find(name).ok_or_else(|| format!("{LIBRARY} is not there any more"))?;
    entry.library().map_err(|why| why.to_string())
}

/// Where the library is that this code is part of.
fn own_folder() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; the place is valid.
    if unsafe { libc::dladdr(own_folder as *const libc::c_void, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: zeroed and then filled in.
    let name = unsafe { found.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: a string of the loader's, there as long as the library.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    Some(std::fs::canonicalize(path).ok()?.parent()?.to_owned())
}

impl Fabric {
    /// The adapter of a local address, opened when it is first asked for.
    fn port(&self, local: IpAddr) -> Option<&'static Port> {
        let mut ports = self.ports();
        let now = time::now();
        ports.retain(|(_, port)| !matches!(port, Err(since) if now - since > ABSENCE));
        if let Some((_, port)) = ports.iter().find(|(ip, _)| *ip == local) {
            return port.ok();
        }
        let adapter = self.provider.open_adapter((local, 0).into());
        let opened = adapter.and_then(|adapter| Port::open(adapter, local));
        if let Ok(port) = opened {
            helper::watch_port(port);
        }
        let entry = opened.map_err(|why| {
            log::info!("no RDMA from {local}: {why}");
            now
        });
        ports.push((local, entry));
        entry.ok()
    }

    /// The next who asks for the adapter of this local address looks for it anew, where there was none.
    fn look_again(&self, local: IpAddr) {
        self.ports().retain(|(ip, port)| *ip != local || port.is_ok());
    }

    fn ports(&self) -> MutexGuard<'_, Vec<Place>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
