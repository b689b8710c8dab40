//! A listener's rendezvous: where connectors leave their intent and their session's segment.
//!
//! The names live in the abstract Unix namespace, which is the network namespace's own: exactly
//! the scope of the address, and gone with the last holder. A connector connects here before it
//! connects over TCP, so when a TCP connection is accepted its intent is in the queue already; if
//! none is there the peer has no shim, and nobody waits (design 2).

use super::policy;
use super::rendezvous::{self, Bound, Intent, Intents, BOUND_WAIT};
use super::tuple::Tuple;
use crate::fabric;
use crate::provider::shm::Segment;
use crate::sys::lock::FamilyLock;
use crate::sys::packet::AbstractName;
use crate::sys::thread::own_tid;
use crate::sys::{file, hidden, net, packet, poll, process, time, Errno, Fd, Result, PAGE};
use smallvec::SmallVec;
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
/// How long (ns) another process that looks for its session is waited for: longer than one that is not stopped takes.
const SIBLINGS_TURN: u64 = 2 * BOUND_WAIT;

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
    /// The thread that was waited for in vain to give the lock back; zero: none.
    waited_for: AtomicU32,
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
            waited_for: AtomicU32::new(0),
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
            waited_for: AtomicU32::new(0),
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
        if !super::is_borrowed() && self.lock() {
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

    /// No connector finds it any more, for whichever of its processes: what they accept from now on is on TCP.
    pub fn retire(&self) {
        if hidden::is_hidden(self.rendezvous) {
            let _ = net::shutdown(self.rendezvous, libc::SHUT_RDWR);
        }
        self.stop_serving();
    }

    /// The connectors on other hosts.
    pub(super) fn board(&self) -> &fabric::Board {
        &self.family().board
    }

    fn family(&self) -> &Family {
        // SAFETY: mapped as long as the listener exists; all zero is a valid value.
        unsafe { &*self.family }
    }

    /// Takes the family's lock; false if the calling thread has it, or a process that stands still: that is waited for
    /// once, and not by every accept.
    fn lock(&self) -> bool {
        let lock = &self.family().lock;
        let waited_for = self.waited_for.load(Ordering::Relaxed);
        if waited_for != 0 && waited_for == lock.holder() && process::lives(waited_for) {
            return lock.try_lock().is_ok();
        }
        let locked = lock.lock_within(SIBLINGS_TURN);
        let stands_still = locked.as_ref().err().filter(|keeper| **keeper != own_tid());
        self.waited_for.store(stands_still.copied().unwrap_or(0), Ordering::Relaxed);
        locked.is_ok()
    }

    /// Notes that a fork is about to make another process accept as well.
    pub fn share(&self) {
        self.family().shared.store(1, Ordering::SeqCst);
    }

    /// The session that the connector of an accepted connection offers; `None` if it has no shim, or another process
    /// may have the offer in its hands and stands still. `accepted` is the connection.
    pub(super) fn take(&self, tuple: &Tuple, accepted: Fd) -> (Option<Offer>, Late<'_>) {
        let mut late = Late { listener: self, intents: SmallVec::new(), left: BOUND_WAIT };
        if !hidden::is_hidden(self.rendezvous) || !self.lock() {
            return (None, late);
        }
        // SAFETY: the lock is held.
        let waiting = unsafe { &mut *self.waiting.get() };
        // The whole queue, because a shared one is emptied by several processes: what is in it now
        // must not be invisible to the others when the lock is free again.
        // Asked first, because accept makes a socket before it finds that nobody waits.
        while poll::poll_one(self.rendezvous, libc::POLLIN).unwrap_or(0) != 0 {
            let Ok(connection) = net::accept(self.rendezvous, libc::SOCK_CLOEXEC) else { break };
            late.intents.extend(Intent::of(connection));
        }
        rendezvous::receive(&mut late.intents, waiting, &mut late.left, |waiting| {
            waiting.iter().any(|b| b.from.tuple == *tuple && b.is_of(tuple, accepted))
        });
        let offer = choose(waiting, tuple, accepted);
        if late.intents.is_empty() {
            self.keep(waiting);
            self.family().lock.unlock();
        }
        (offer, late)
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
        let Ok(fd) = packet::socket(true) else { return };
        if packet::connect(fd, &self.name).is_ok() {
            let _ = packet::send(fd, &bound.from.encode(), Some(bound.segment));
        }
        file::close(fd);
    }
}

/// Connectors whose segment comes late, while the accepted connection's session was found: that is taken before they are
/// waited for, when this is dropped.
pub(super) struct Late<'a> {
    listener: &'a Listener,
    /// If there are any, the family's lock is held.
    intents: Intents,
    /// How long (ns) they may still be waited for.
    left: u64,
}

impl Drop for Late<'_> {
    fn drop(&mut self) {
        if self.intents.is_empty() {
            return;
        }
        // SAFETY: the lock is held.
        let waiting = unsafe { &mut *self.listener.waiting.get() };
        rendezvous::receive(&mut self.intents, waiting, &mut self.left, |_| false);
        self.listener.keep(waiting);
        self.listener.family().lock.unlock();
    }
}

/// The session for an accepted connection among those that wait.
fn choose(waiting: &mut Vec<Bound>, tuple: &Tuple, accepted: Fd) -> Option<Offer> {
    // The newest counts: an older one with these addresses is of a connection that is gone.
    let found = waiting.iter().rposition(|b| b.from.tuple == *tuple).map(|at| waiting.remove(at));
    waiting.retain(|b| {
        let stale = b.from.tuple == *tuple;
        if stale {
            hidden::close_any(b.segment);
        }
        !stale
    });
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
    let sign = packet::put_up_sign(name)?;
    match packet::listen(name, BACKLOG) {
        Ok(rendezvous) => Ok([sign, rendezvous]),
        Err(e) => {
            file::close(sign);
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tuple::Introduction;
    use super::*;
    use std::sync::Barrier;

    /// Nobody listens there over TCP; another process at these tests has another one.
    fn ip() -> std::net::IpAddr {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        std::net::Ipv4Addr::new(127, a, b, c).into()
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::new(ip(), port)
    }

    #[test]
    fn who_joins_a_group_passes_over_a_member_that_is_half_gone() {
        let name = |member| name(&ip().to_string(), 1, Some(member));
        let left = [packet::put_up_sign(&name(0)).unwrap(), packet::listen(&name(1), 1).unwrap()];
        let listener = Listener::open(address(1), false, true).unwrap();
        assert_eq!(listener.name, name(2));
        left.into_iter().for_each(file::close);
    }

    #[test]
    fn a_name_that_is_just_given_up_is_waited_for() {
        // Who leaves may not get a processor in time.
        let found = (0..20).any(|_| {
            let left = packet::listen(&name(&ip().to_string(), 2, None), 1).unwrap();
            let leaves = std::thread::spawn(move || {
                time::sleep(LEAVING / 4);
                file::close(left);
            });
            let opened = Listener::open(address(2), false, false);
            leaves.join().unwrap();
            opened.is_ok()
        });
        assert!(found);
    }

    #[test]
    fn a_sibling_that_stands_still_is_waited_for_once() {
        let listener = Listener::open(address(4), false, false).unwrap();
        let (lock, turn) = (&listener.family().lock, Barrier::new(2));
        let take = || {
            let began = time::now();
            let tuple = Tuple { connector: address(5), acceptor: address(4) };
            assert!(listener.take(&tuple, -1).0.is_none());
            (listener.waited_for.load(Ordering::Relaxed), time::now() - began)
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                lock.lock().unwrap();
                turn.wait();
                turn.wait();
                lock.unlock();
            });
            turn.wait();
            let [(first, waited), (second, passed)] = [take(), take()];
            assert_eq!([first, second], [lock.holder(); 2]);
            assert!(passed < waited);
            turn.wait();
        });
        assert_eq!((take().0, lock.holder()), (0, 0));
    }

    #[test]
    fn a_sibling_that_dies_standing_still_is_succeeded() {
        let listener = Listener::open(address(9), false, false).unwrap();
        let lock = &listener.family().lock;
        let tuple = Tuple { connector: address(5), acceptor: address(9) };
        let (died, turn) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                lock.lock().unwrap();
                turn.wait();
                died.wait();
            });
            turn.wait();
            listener.take(&tuple, -1);
            assert_ne!(listener.waited_for.load(Ordering::Relaxed), 0);
            died.wait();
        });
        while process::lives(lock.holder()) {
            process::yield_now();
        }
        listener.take(&tuple, -1);
        assert_eq!((listener.waited_for.load(Ordering::Relaxed), lock.holder()), (0, 0));
    }

    /// Else its connector would wait for the other one's sake, and withdraw.
    #[test]
    fn a_session_is_there_although_another_connectors_comes_late() {
        let listener = Listener::open(address(6), false, false).unwrap();
        let announce = || {
            let fd = packet::socket(true).unwrap();
            packet::connect(fd, &listener.name).map(|()| fd).unwrap()
        };
        let tuple = |port| Tuple { connector: address(port), acceptor: address(6) };
        let bind = |fd, port| {
            let segment = file::sealed_memory(c"test", PAGE).unwrap();
            let from = Introduction { tuple: tuple(port), inode: 1 };
            packet::send(fd, &from.encode(), Some(segment)).unwrap();
            [fd, segment].into_iter().for_each(file::close);
        };
        let (late, prompt) = (announce(), announce());
        bind(prompt, 7);
        let (offer, rest) = listener.take(&tuple(7), -1);
        file::close(offer.unwrap().segment);
        bind(late, 8);
        drop(rest);
        let (offer, rest) = listener.take(&tuple(8), -1);
        hidden::close_any(offer.unwrap().segment);
        drop(rest);
        assert_eq!(listener.family().lock.holder(), 0);
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
