//! A listener's rendezvous: where connectors leave their intent and their session's segment.
//!
//! The names live in the abstract Unix namespace, which is the network namespace's own: exactly
//! the scope of the address, and gone with the last holder. A connector connects here before it
//! connects over TCP, so when a TCP connection is accepted its intent is in the queue already; if
//! none is there the peer has no shim, and nobody waits (design 2).

use super::policy;
use super::tuple::{Introduction, Tuple};
use crate::fabric;
use crate::provider::shm::Segment;
use crate::sys::lock::FamilyLock;
use crate::sys::net::AbstractName;
use crate::sys::{file, hidden, net, poll, process, sock_diag, time, Errno, Fd, Result, PAGE};
use std::cell::UnsafeCell;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Most listeners of one SO_REUSEPORT group that connectors look for.
pub(super) const GROUP_LIMIT: u32 = 64;
/// Most sessions kept for connections that are not accepted yet.
const WAITING_LIMIT: usize = 1024;
/// From how many on it is looked whether they are still wanted.
const WAITING_CHECKED: usize = 16;
/// How long (ns) a name is waited for that a listener of the same address had, of a process that is just ending, and
/// how long between two attempts.
const LEAVING: u64 = 20_000_000;
const LEAVING_PAUSE: u64 = 500_000;
/// How often (ns) it is looked whether the process lives that serves connectors on other hosts.
const LOOK_AT_SERVER: u64 = 1_000_000_000;
/// How long (ns) to look for that segment before sleeping: the connector is about to send it, and to be
/// woken takes longer.
const LOOK_TIME: u64 = 50_000;
/// Longest wait (ns) for a connector between its intent and the segment that follows at once: it may
/// have lost its processor in between.
const BOUND_WAIT: u64 = 250_000_000;
/// So much of it at a time: this host may stand still, which then takes no more of the wait.
const BOUND_SLICE: u64 = 10_000_000;

/// The name of the rendezvous for an address, as connectors and listeners spell it.
/// `member` counts the listeners of an SO_REUSEPORT group.
pub(super) fn name(address: &str, port: u16, member: Option<u32>) -> AbstractName {
    let text = match member {
        None => format!("sanshim/1/{address}:{port}"),
        Some(n) => format!("sanshim/1/{address}:{port}#{n}"),
    };
    AbstractName::new(text.as_bytes())
}

/// The names of a wildcard listener for both families.
pub(super) const ANY: &str = "*";

/// How a listener's own address is spelt.
fn spelling(address: SocketAddr, dual: bool) -> String {
    match address.ip() {
        IpAddr::V6(ip) if ip.is_unspecified() && dual => ANY.to_owned(),
        ip => ip.to_canonical().to_string(),
    }
}

/// Shared by all processes that inherited the listener.
#[repr(C)]
struct Family {
    lock: FamilyLock,
    /// Not zero once a fork made several processes accept.
    shared: AtomicU32,
    /// The process that serves connectors on other hosts; zero: none yet.
    server: AtomicU32,
    /// Those connectors.
    board: fabric::Board,
}

/// A session that arrived before its connection was accepted.
struct Bound {
    from: Introduction,
    segment: Fd,
    admitted: bool,
    connector: policy::Relation,
}

impl Bound {
    /// False if the connection with these addresses belongs to another socket than the one that
    /// made the offer: its port was used again.
    fn is_of(&self, tuple: &Tuple, accepted: Fd) -> bool {
        match sock_diag::lookup(accepted, tuple.connector, tuple.acceptor) {
            // An inode of zero: the connector closed already, but the connection is still its own.
            Ok(Some(owner)) => owner.inode == 0 || u64::from(owner.inode) == self.from.inode,
            Ok(None) | Err(_) => true,
        }
    }
}

/// A connector's offer.
pub(super) struct Offer {
    /// The session's segment.
    pub segment: Fd,
    /// False: its user may not share memory with us, and is to be told.
    pub admitted: bool,
    /// Who made it.
    pub connector: policy::Relation,
}

/// See the module.
pub struct Listener {
    rendezvous: Fd,
    /// What connectors look for before they connect to the rendezvous.
    sign: Fd,
    name: AbstractName,
    /// A hidden descriptor for the family's memory, by which another image maps it; -1: none.
    family_fd: Fd,
    family: *mut Family,
    /// Guarded by the family's lock.
    waiting: UnsafeCell<Vec<Bound>>,
    /// Where it listens, and whether for both families; not known of one from another image.
    address: Option<(SocketAddr, bool)>,
    /// Another listener may have the same address.
    grouped: bool,
    /// Connectors on other hosts, from `Box::into_raw`; null: another process serves them, or nobody.
    serving: AtomicPtr<fabric::Serving>,
    /// Clock (ns) of the last look whether that process lives.
    looked_at: AtomicU64,
}

// SAFETY: `waiting` is only touched under the family's lock; the rest never changes.
unsafe impl Sync for Listener {}

impl Listener {
    /// Opens the rendezvous for a TCP listener bound to `address`. EADDRINUSE: its name is taken,
    /// which happens only if the address is shared in a way we do not know.
    pub fn open(address: SocketAddr, dual: bool, reuse_port: bool) -> Result<Self> {
        let spelt = spelling(address, dual);
        let open = |member| {
            let name = name(&spelt, address.port(), member);
            open_under(&name).map(|fds| (name, fds))
        };
        let is_taken = |opened: &Result<_>| opened.as_ref().err() == Some(&Errno(libc::EADDRINUSE));
        let opened = if reuse_port {
            let mut members = (0..GROUP_LIMIT).map(|member| open(Some(member)));
            members.find(|opened| !is_taken(opened)).unwrap_or(Err(Errno(libc::EADDRINUSE)))
        } else {
            let until = time::now() + LEAVING;
            loop {
                let opened = open(None);
                if !is_taken(&opened) || time::now() > until {
                    break opened;
                }
                time::sleep(LEAVING_PAUSE);
            }
        };
        let (name, [sign, rendezvous]) = opened?;
        let (family, family_fd) = Self::new_family()
            .inspect_err(|_| [sign, rendezvous].into_iter().for_each(file::close))?;
        let (sign, rendezvous) = (hidden::keep(sign), hidden::keep(rendezvous));
        let waiting = UnsafeCell::new(Vec::new());
        let address = Some((address, dual));
        let grouped = reuse_port;
        Ok(Self {
            rendezvous,
            sign,
            name,
            family_fd,
            family,
            waiting,
            address,
            grouped,
            serving: AtomicPtr::default(),
            looked_at: AtomicU64::new(0),
        })
    }

    fn new_family() -> Result<(*mut Family, Fd)> {
        let fd = file::sealed_memory(c"sanshim-listener", PAGE);
        match file::map_shared(fd.ok(), PAGE) {
            Ok(family) => Ok((family.cast(), fd.map_or(-1, hidden::keep))),
            Err(e) => {
                let _ = fd.map(file::close);
                Err(e)
            }
        }
    }

    /// A listener that another image left: its hidden descriptors, as [`within_reach`] gave them.
    ///
    /// [`within_reach`]: Self::within_reach
    pub fn of_other_image(fds: [Fd; 3], name: AbstractName) -> Option<Self> {
        let [rendezvous, sign, family_fd] = fds;
        if file::sealed_size(family_fd) != Ok(Some(PAGE as u64)) {
            return None;
        }
        let family: *mut Family = file::map_shared(Some(family_fd), PAGE).ok()?.cast();
        // SAFETY: mapped just now; all zero is a valid value.
        unsafe { (*family).lock.abandon_own() };
        let waiting = UnsafeCell::new(Vec::new());
        Some(Self {
            rendezvous,
            sign,
            name,
            family_fd,
            family,
            waiting,
            address: None,
            grouped: false,
            serving: AtomicPtr::default(),
            looked_at: AtomicU64::new(0),
        })
    }

    /// The hidden descriptors and the name that another image needs to accept as well. Sessions that
    /// arrived for connections nobody accepted yet are queued again for it; not in a vfork child,
    /// whose descriptors are not those of its memory.
    pub fn within_reach(&self) -> Option<([Fd; 3], AbstractName)> {
        let fds = [self.rendezvous, self.sign, self.family_fd];
        if !fds.iter().all(|fd| hidden::is_hidden(*fd)) {
            return None;
        }
        self.share();
        if !super::is_borrowed() && self.family().lock.lock().is_ok() {
            // SAFETY: the lock is held.
            self.keep(unsafe { &mut *self.waiting.get() });
            self.family().lock.unlock();
        }
        Some((fds, self.name))
    }

    /// Serves connectors on other hosts from now on, unless another process does.
    pub fn serve(&self) {
        let server = self.family().server.load(Ordering::Relaxed);
        let us = process::pid();
        if server == us || self.grouped {
            return;
        }
        let Some((address, dual)) = self.address else { return };
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
            let serving = unsafe { fabric::serve(address, dual, &self.family().board) };
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

    /// The connectors on other hosts.
    pub(super) fn board(&self) -> &fabric::Board {
        &self.family().board
    }

    fn family(&self) -> &Family {
        // SAFETY: mapped as long as the listener exists; all zero is a valid value.
        unsafe { &*self.family }
    }

    /// Notes that a fork is about to make another process accept as well.
    pub fn share(&self) {
        self.family().shared.store(1, Ordering::SeqCst);
    }

    /// The session that the connector of an accepted connection offers; `None` if it has no shim.
    /// `accepted` is the connection.
    pub(super) fn take(&self, tuple: &Tuple, accepted: Fd) -> Option<Offer> {
        if !hidden::is_hidden(self.rendezvous) || self.family().lock.lock().is_err() {
            return None;
        }
        // SAFETY: the lock is held.
        let waiting = unsafe { &mut *self.waiting.get() };
        // The whole queue, because a shared one is emptied by several processes: what is in it now
        // must not be invisible to the others when the lock is free again.
        // Asked first, because accept makes a socket before it finds that nobody waits.
        while poll::poll_one(self.rendezvous, libc::POLLIN).unwrap_or(0) != 0 {
            let Ok(connection) = net::accept(self.rendezvous, libc::SOCK_CLOEXEC) else { break };
            waiting.extend(receive_bound(connection));
            file::close(connection);
        }
        // The newest counts: an older one with these addresses is of a connection that is gone.
        let found =
            waiting.iter().rposition(|b| b.from.tuple == *tuple).map(|at| waiting.remove(at));
        waiting.retain(|b| {
            let stale = b.from.tuple == *tuple;
            if stale {
                hidden::close_any(b.segment);
            }
            !stale
        });
        self.keep(waiting);
        self.family().lock.unlock();
        let bound = found?;
        if bound.is_of(tuple, accepted) {
            return Some(Offer {
                segment: bound.segment,
                admitted: bound.admitted,
                connector: bound.connector,
            });
        }
        hidden::close_any(bound.segment);
        None
    }

    /// Sessions of connections that nobody accepted yet: queued again where another process may
    /// accept them, else kept here.
    fn keep(&self, waiting: &mut Vec<Bound>) {
        if self.family().shared.load(Ordering::Relaxed) != 0 {
            for bound in waiting.drain(..) {
                if bound.admitted {
                    self.queue_again(&bound);
                } else {
                    // Queued again it would come from ourselves.
                    Segment::refuse(bound.segment);
                }
                hidden::close_any(bound.segment);
            }
            return;
        }
        if waiting.len() > WAITING_CHECKED {
            // Another listener of an SO_REUSEPORT group took them, or their connector is gone.
            waiting.retain(|b| {
                let live = Segment::is_pending(b.segment);
                if !live {
                    hidden::close_any(b.segment);
                }
                live
            });
        }
        while waiting.len() > WAITING_LIMIT {
            hidden::close_any(waiting.remove(0).segment);
        }
        for bound in waiting.iter_mut().filter(|b| !hidden::is_hidden(b.segment)) {
            bound.segment = hidden::keep(bound.segment);
        }
    }

    fn queue_again(&self, bound: &Bound) {
        let Ok(fd) = net::packet_socket(true) else { return };
        if net::packet_connect(fd, &self.name).is_ok() {
            let _ = net::send_packet(fd, &bound.from.encode(), Some(bound.segment));
        }
        file::close(fd);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop_serving();
        // In the order in which they were made, as at exit: see `open_under`.
        hidden::close(self.sign);
        hidden::close(self.rendezvous);
        if self.family_fd >= 0 {
            hidden::close(self.family_fd);
        }
        for bound in self.waiting.get_mut() {
            hidden::close(bound.segment);
        }
        // SAFETY: this is the last use in this process.
        unsafe { file::unmap(self.family.cast(), PAGE) };
    }
}

/// The sign and the rendezvous of that name. The sign comes and goes first: whoever has put up one finds the
/// rendezvous free, or held by somebody who is about to let go of it.
fn open_under(name: &AbstractName) -> Result<[Fd; 2]> {
    const BACKLOG: i32 = 65535;
    let sign = net::put_up_sign(name)?;
    match net::packet_listen(name, BACKLOG) {
        Ok(rendezvous) => Ok([sign, rendezvous]),
        Err(e) => {
            file::close(sign);
            Err(e)
        }
    }
}

/// Waits, briefly, for the segment that follows an intent. `None` if the connector gave up, may
/// not share memory with us, or sent nonsense.
fn receive_bound(connection: Fd) -> Option<Bound> {
    let (pid, uid) = net::peer_credentials(connection).ok()?;
    let admitted = policy::may_share_with(uid);
    let connector = policy::Relation::to(pid, uid);
    if !admitted {
        log::info!("a connector of user {uid} may not share memory with us (allow_users)");
    }
    let start = time::now();
    let mut left = BOUND_WAIT;
    let mut buffer = [0u8; Introduction::ENCODED + 1];
    loop {
        match net::receive_packet(connection, &mut buffer) {
            Ok((n, Some(segment))) => match Introduction::decode(&buffer[..n]) {
                Some(from) => return Some(Bound { from, segment, admitted, connector }),
                None => {
                    file::close(segment);
                    return None;
                }
            },
            Ok((_, None)) => return None,
            Err(Errno(libc::EAGAIN)) => {
                if left == 0 {
                    return None;
                }
                let before = time::now();
                if before - start < LOOK_TIME {
                    process::yield_now();
                    continue;
                }
                let slice = left.min(BOUND_SLICE);
                let mut fds = [libc::pollfd { fd: connection, events: libc::POLLIN, revents: 0 }];
                let _ = poll::poll(&mut fds, Some(slice), None);
                left -= (time::now() - before).min(slice);
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::new(std::net::Ipv4Addr::new(127, 9, 9, 9).into(), port)
    }

    #[test]
    fn who_joins_a_group_passes_over_a_member_that_is_half_gone() {
        let name = |member| name("127.9.9.9", 1, Some(member));
        let left = [net::put_up_sign(&name(0)).unwrap(), net::packet_listen(&name(1), 1).unwrap()];
        let listener = Listener::open(address(1), false, true).unwrap();
        assert_eq!(listener.name, name(2));
        left.into_iter().for_each(file::close);
    }

    #[test]
    fn a_name_that_is_just_given_up_is_waited_for() {
        let left = net::packet_listen(&name("127.9.9.9", 2, None), 1).unwrap();
        let leaves = std::thread::spawn(move || {
            time::sleep(LEAVING / 4);
            file::close(left);
        });
        assert!(Listener::open(address(2), false, false).is_ok());
        leaves.join().unwrap();
    }

    #[test]
    fn a_name_that_stays_taken_is_an_error() {
        let taken = Listener::open(address(3), false, false).unwrap();
        let refused = Listener::open(address(3), false, false).err();
        assert_eq!(refused, Some(Errno(libc::EADDRINUSE)));
        drop(taken);
        assert!(Listener::open(address(3), false, false).is_ok());
    }
}
