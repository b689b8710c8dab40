//! Which connections may use the SAN, and with which users this process may share memory.

use crate::config::{Config, RdmaOperations, RdmaThreshold, ShmConfig, SocketRole, Swap};
use crate::provider::shm::{Geometry, THRESHOLD};
use crate::reason::Reason;
use crate::registry;
use crate::session::transfer::Abilities;
use crate::sys::lender::Lender;
use crate::sys::mounts;
use crate::sys::process;
use crate::sys::user_folder::{is_one_user, SHARED_MEMORY};
use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

struct Policy {
    config: Config,
    /// Effective user when the library was loaded: servers change it later.
    loaded_as: u32,
    /// The configuration's folder.
    folder: Option<CString>,
    /// The folder is on a file system of the network, which may keep a process waiting that asks for a name.
    is_folder_remote: bool,
}

static POLICY: OnceLock<Policy> = OnceLock::new();

/// Fixes the policy; the first call counts.
pub(in crate::switch) fn initialize(config: Config) {
    // A path has no zeros.
    let text = |path: &PathBuf| CString::new(path.as_os_str().as_bytes()).ok();
    let folder = config.folder.as_ref().and_then(text);
    let kind = config.folder().and_then(|path| mounts::remote_kind(None, path));
    if let (Some(kind), Some(path)) = (&kind, &config.folder) {
        log::warn!(
            "TCP only: the folder {} is on {kind}, a file system of the network",
            path.display()
        );
    }
    let (loaded_as, is_folder_remote) = (process::euid(), kind.is_some());
    let _ = POLICY.set(Policy { config, loaded_as, folder, is_folder_remote });
}

/// Where the ends of a connection of this host find each other.
pub(in crate::switch) fn folder() -> &'static CStr {
    named_folder().unwrap_or(SHARED_MEMORY)
}

/// Why this process can say nowhere what connections it has, if so.
pub(in crate::switch) fn has_place() -> Result<(), Reason> {
    let is_remote = POLICY.get().is_some_and(|policy| policy.is_folder_remote);
    (!is_remote).then_some(()).ok_or(Reason::NoPlace)
}

/// The folder that the configuration names: whoever names the same one may share memory with this process across network
/// namespaces.
fn named_folder() -> Option<&'static CStr> {
    POLICY.get()?.folder.as_deref()
}

/// True if ends in different network namespaces may find each other.
pub(in crate::switch) fn crosses_namespaces() -> bool {
    named_folder().is_some()
}

/// Says in the registry with whom this process shares memory, and where it meets them.
pub(in crate::switch) fn publish_admission() {
    if let Some(policy) = POLICY.get() {
        let config = &policy.config;
        registry::publish_admission(policy.loaded_as, config.allowed_users(), config.folder());
    }
}

/// True if a process of this user may map memory together with us, at either end: one of our own
/// user, one of the user we were started as, root (who can read us anyway), or one the
/// configuration names.
pub(in crate::switch) fn may_share_with(uid: u32) -> bool {
    let Some(policy) = POLICY.get() else { return false };
    let may = uid == 0
        || uid == process::euid()
        || uid == policy.loaded_as
        || policy.config.allowed_users().any(|allowed| allowed == uid);
    may && is_one_user(uid)
}

/// Why this process's user can share memory with nobody, if so.
pub(in crate::switch) fn has_user() -> Result<(), Reason> {
    is_one_user(process::euid()).then_some(()).ok_or(Reason::NoUser)
}

/// The largest segment that is taken: what this process would make, or would by default.
pub(in crate::switch) fn largest_geometry() -> Geometry {
    let (own, usual) = (geometry(), geometry_of(ShmConfig::default()));
    Geometry {
        buffers: own.buffers.max(usual.buffers),
        message_size: own.message_size.max(usual.message_size),
        send_buffer: own.send_buffer.max(usual.send_buffer),
        largest_message: own.largest_message.max(usual.largest_message),
        largest_send_buffer: own.largest_send_buffer.max(usual.largest_send_buffer),
    }
}

/// Users as whom processes may be known that [may share](may_share_with) memory with this one.
pub(in crate::switch) fn identities() -> impl Iterator<Item = u32> {
    let policy = POLICY.get();
    let loaded_as = policy.map(|policy| policy.loaded_as);
    let allowed = policy.into_iter().flat_map(|policy| policy.config.allowed_users());
    let own = process::euid();
    let others = loaded_as.into_iter().chain([0]).filter(move |uid| *uid != own);
    std::iter::once(own).chain(others).chain(allowed)
}

static STAYS_ON_TCP: AtomicBool = AtomicBool::new(false);
static UNHOOKED_USE: AtomicBool = AtomicBool::new(false);

/// Whether new connections of this process stay on TCP whatever the rules say; not those of a fork child. Whether they
/// did so before.
pub(in crate::switch) fn stay_on_tcp(stays: bool) -> bool {
    STAYS_ON_TCP.swap(stays, Ordering::Relaxed)
}

/// They stay there because the program may use them past the hooks, and a fork child's too. Whether they did so before.
pub(in crate::switch) fn stay_on_tcp_for_unhooked_use(stays: bool) -> bool {
    UNHOOKED_USE.swap(stays, Ordering::Relaxed)
}

/// Whether they stay there for that.
pub(in crate::switch) fn has_unhooked_use() -> bool {
    UNHOOKED_USE.load(Ordering::Relaxed)
}

/// Why new connections stay on TCP whatever the rules say, if they do.
pub(in crate::switch) fn may_leave_tcp() -> Result<(), Reason> {
    if has_unhooked_use() {
        return Err(Reason::UnseenUse);
    }
    if STAYS_ON_TCP.load(Ordering::Relaxed) {
        return Err(Reason::Policy);
    }
    Ok(())
}

/// Whether the rules let a connection in this role, to or at this address, use the SAN.
pub(in crate::switch) fn check(role: SocketRole, address: &SocketAddr) -> Result<(), Reason> {
    may_leave_tcp()?;
    match POLICY.get() {
        Some(policy) if !policy.config.enabled => Err(Reason::Off),
        Some(policy) if policy.config.allows(role, address) => Ok(()),
        Some(_) => Err(Reason::Policy),
        None => Err(Reason::Off),
    }
}

/// Whether a rule keeps a connection in this role, to or at this address, on TCP.
pub(in crate::switch) fn forbids(role: SocketRole, address: &SocketAddr) -> bool {
    POLICY.get().is_some_and(|policy| !policy.config.allows(role, address))
}

/// Whether connections may use shared memory.
pub(in crate::switch) fn shares_memory() -> bool {
    POLICY.get().is_none_or(|policy| policy.config.providers.shm)
}

/// How segments are divided.
pub(in crate::switch) fn geometry() -> Geometry {
    geometry_of(POLICY.get().map(|p| p.config.shm).unwrap_or_default())
}

fn geometry_of(shm: ShmConfig) -> Geometry {
    Geometry {
        buffers: u32::from(shm.message_buffers),
        message_size: shm.message_size,
        send_buffer: shm.send_buffer,
        largest_message: shm.largest_message_size.max(shm.message_size),
        largest_send_buffer: shm.largest_send_buffer.max(shm.send_buffer),
    }
}

/// What is known of who is at the other end.
#[derive(Clone, Copy)]
pub(in crate::switch) struct Relation {
    /// It is this process.
    pub(crate) same_process: bool,
    /// The process, where the two may use each other's memory.
    pub(crate) lender: Option<Lender>,
    /// From how many bytes on the device that leads there finds RDMA worth it, where it can do RDMA.
    pub(crate) device: Option<u32>,
    /// It is of this PID namespace, and the kernel shows here which socket is its end.
    pub(crate) is_in_sight: bool,
}

impl Relation {
    /// To a process of another host.
    pub(in crate::switch) const ELSEWHERE: Relation =
        Relation { same_process: false, lender: None, device: None, is_in_sight: false };

    /// To a process of another host, over a device. `threshold`: from how many bytes on it finds RDMA worth it.
    pub(in crate::switch) fn over(threshold: Option<u32>) -> Relation {
        Relation { device: threshold, ..Relation::ELSEWHERE }
    }

    /// To the process `pid` of user `uid`, as the kernel says.
    pub(in crate::switch) fn to(pid: u32, uid: u32) -> Relation {
        let may_lend = uses_lent_memory() && uid == process::euid();
        let lender = may_lend.then(|| Lender::of(pid)).flatten();
        let is_in_sight = process::is_of_own_namespace(pid);
        Relation { same_process: pid == process::pid(), lender, device: None, is_in_sight }
    }

    /// The same where the addresses of the connection do not lead to its other end.
    pub(in crate::switch) fn seen_apart(self) -> Relation {
        Relation { is_in_sight: false, ..self }
    }
}

/// Whether this process is to use memory of others.
fn uses_lent_memory() -> bool {
    let shm = POLICY.get().map(|p| p.config.shm).unwrap_or_default();
    shm.rdma_threshold != RdmaThreshold::Never
}

/// What the provider offers on a connection (A2). On one host RDMA is the kernel's access to another
/// process: only to the one that the kernel named, and which may access as much. A peer with fewer
/// rights than ours could otherwise name somebody else's memory.
pub(in crate::switch) fn abilities(peer: Relation) -> Abilities {
    let shm = POLICY.get().map(|p| p.config.shm).unwrap_or_default();
    let threshold = match shm.rdma_threshold {
        RdmaThreshold::Never => return Abilities::NONE,
        RdmaThreshold::Measured => peer.device.map_or(THRESHOLD, |least| least.max(THRESHOLD)),
        RdmaThreshold::Bytes(bytes) => bytes,
    };
    if peer.lender.is_none() && peer.device.is_none() {
        return Abilities::NONE;
    }
    Abilities {
        threshold,
        read: shm.rdma_operations != RdmaOperations::Write,
        write: shm.rdma_operations != RdmaOperations::Read,
    }
}

/// Whether RDMA is used only where it proves faster than messages.
pub(in crate::switch) fn measures() -> bool {
    let shm = POLICY.get().map(|p| p.config.shm).unwrap_or_default();
    shm.rdma_threshold == RdmaThreshold::Measured
}

/// Whether control moves to another process only while the session is suspended (D4).
pub(in crate::switch) fn swaps_by_suspension() -> bool {
    POLICY.get().is_some_and(|policy| policy.config.shm.swap == Swap::Suspend)
}

static CONFINED: AtomicBool = AtomicBool::new(false);

/// This process may forbid itself what it does not do by itself, from now on.
pub(in crate::switch) fn confine() {
    CONFINED.store(true, Ordering::Relaxed);
}

/// True if this process may have forbidden itself what it does not do by itself.
pub(in crate::switch) fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}
