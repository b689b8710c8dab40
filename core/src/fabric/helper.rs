//! The thread that goes on where the program is away: sends what has no room yet, takes what comes
//! while nobody looks, rings bells, answers connection requests, and ends links that were closed
//! with something unsent. TCP's kernel does the same in the background.
//!
//! There is none until the first port is opened. It blocks all signals, sleeps while the completion
//! queues are armed, and ticks for a moment after something happened. In a fork child there is none.

use super::link::{Link, Tell, Wire};
use super::mailbox::{Address, Mailbox, Message};
use super::port::Port;
use super::{berth, no_fork, rendezvous, Users, CALLS};
use crate::sys::process::{self, SignalsHeld};
use crate::sys::{file, handlers, hidden, poll, time, Fd};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A program that did not look for so many ticks in a row is away: a busy machine may keep it from its processor for one.
const AWAY_FOR: u32 = 2;
/// Between two looks while something goes on, in nanoseconds.
const TICK: u64 = 10_000_000;
/// How long (ns) a queue pair is kept in whose place there is another one: its peer's last message is
/// acknowledged by then.
const REPLACED: u64 = 1_000_000_000;
/// How long (ns) a closed link whose peer takes nothing is kept; as TCP's retransmissions.
const LINGER: u64 = 900_000_000_000;
/// How long (ns) a closed link waits for control that was promised to this process.
const ON_ITS_WAY: u64 = 60_000_000_000;
/// How long (ns) the exit of the process waits until relatives have taken control of what they use.
const LEAVING: u64 = 1_000_000_000;
/// How often it is tried, a tick apart, what somebody outside asks for.
const ATTEMPTS: u32 = 100;
/// What a descriptor in the set is about: other processes or threads, the removal of a device, anything else.
const KICK: u64 = 0;
const ANY: u64 = 1;
const REMOVAL: u64 = 2;

struct Helper {
    set: Fd,
    kick: Fd,
    mailbox: Mailbox,
    /// It sleeps for as long as nothing is told.
    dormant: AtomicBool,
    ports: Mutex<Vec<&'static Port>>,
    closed: Mutex<Vec<Closed>>,
    /// Queue pairs in whose place there is another one, and since when. Each ends before its link's memory.
    replaced: Mutex<Vec<(Wire, Arc<Link>, u64)>>,
    /// Links of which relatives have control now.
    given: Mutex<Vec<Weak<Link>>>,
    /// Ports whose devices were removed, and which links still use.
    retired: Mutex<Vec<&'static Port>>,
}

/// A link that its program closed.
struct Closed {
    link: Arc<Link>,
    users: Option<Box<dyn Users>>,
    since: u64,
}

impl Closed {
    /// True while fork relatives use it.
    fn is_used(&self) -> bool {
        self.users.as_ref().is_some_and(|users| users.are_there())
    }

    /// True while a relative has control, which is on its way here: the peer is to find somebody.
    fn gets_control(&self) -> bool {
        self.link.withdraw_within()
            && !self.link.is_failed_by_peer()
            && !self.link.is_closed_by_peer()
            && time::now() - self.since < ON_ITS_WAY
    }

    /// Nothing of this process uses it any more. By the helper.
    fn dismiss(self) {
        if self.link.is_foreign() {
            berth::give_up(&self.link);
        } else {
            self.link.renege();
            self.link.end();
        }
        self.link.forget_end();
        drop(self.users);
        if self.link.is_inherited() {
            self.link.leave_to_parent();
        }
    }
}

/// Something is under way that what completes may bring on.
static BUSY: AtomicBool = AtomicBool::new(false);
static HELPER: AtomicPtr<Helper> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: Mutex<()> = Mutex::new(());

fn present() -> Option<&'static Helper> {
    // SAFETY: never freed.
    unsafe { HELPER.load(Ordering::Acquire).as_ref() }
}

fn helper() -> Option<&'static Helper> {
    if let Some(helper) = present() {
        return Some(helper);
    }
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(helper) = present() {
        return Some(helper);
    }
    let (set, kick) = (poll::epoll_create().ok()?, file::eventfd(0).ok()?);
    let (set, kick) = (hidden::keep(set), hidden::keep(kick));
    let mailbox = Mailbox::open().ok()?;
    for fd in [kick, mailbox.fd] {
        poll::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, KICK).ok()?;
    }
    let helper: &'static Helper = Box::leak(Box::new(Helper {
        set,
        kick,
        mailbox,
        dormant: AtomicBool::new(false),
        ports: Mutex::default(),
        closed: Mutex::default(),
        replaced: Mutex::default(),
        given: Mutex::default(),
        retired: Mutex::default(),
    }));
    // The thread inherits the mask: no signal of the program is ever delivered to it.
    let held = SignalsHeld::new();
    let builder = std::thread::Builder::new().name("sanshim".into()).stack_size(256 << 10);
    let started = builder.spawn(|| helper.run());
    drop(held);
    if let Err(why) = started {
        log::warn!("no RDMA: the helper thread could not be started: {why}");
        return None;
    }
    HELPER.store(std::ptr::from_ref(helper).cast_mut(), Ordering::Release);
    if let Some(calls) = CALLS.get() {
        (calls.reachable)(helper.mailbox.address);
    }
    Some(helper)
}

/// In a fork child: the thread is the parent's.
pub(super) fn after_fork_in_child() {
    HELPER.store(std::ptr::null_mut(), Ordering::Relaxed);
}

/// The mailbox of this process's helper: a socket to send from, which fork relatives inherit, and where
/// to send to.
pub(super) fn mailbox() -> Option<(Fd, Address)> {
    helper().map(|helper| (helper.mailbox.fd, helper.mailbox.address))
}

/// Where to send to this process's helper, if it has one.
pub(super) fn own_mailbox() -> Option<Address> {
    present().map(|helper| helper.mailbox.address)
}

/// True if it is to hear what completes at once.
pub(super) fn is_busy() -> bool {
    BUSY.load(Ordering::SeqCst)
}

/// Has this process's helper look.
pub(super) fn wake() {
    if let Some(helper) = present() {
        kick(helper.kick);
    }
}

fn kick(descriptor: Fd) {
    let one = 1u64.to_ne_bytes();
    let _ = file::write(descriptor, one.as_ptr(), one.len());
}

/// Has the helper look, if it sleeps for longer.
pub(super) fn wake_if_dormant() {
    if let Some(helper) = present() {
        if helper.dormant.load(Ordering::SeqCst) && helper.dormant.swap(false, Ordering::SeqCst) {
            kick(helper.kick);
        }
    }
}

/// Looks after a port from now on.
pub(super) fn watch_port(port: &'static Port) {
    let Some(helper) = helper() else { return };
    helper.lock_ports().push(port);
    for (descriptor, tag) in [(port.descriptor(), ANY), (port.watch(), REMOVAL)] {
        if let Some(descriptor) = descriptor {
            helper.watch(descriptor, tag);
        }
    }
    kick(helper.kick);
}

/// Has the helper look when a descriptor is readable.
pub(super) fn watch(descriptor: Fd) {
    if let Some(helper) = helper() {
        helper.watch(descriptor, ANY);
    }
}

/// Whether the helper looks when that descriptor, which it watches, is readable.
pub(super) fn hear(descriptor: Fd, does: bool) {
    if let Some(helper) = present() {
        let events = if does { libc::EPOLLIN as u32 } else { 0 };
        let _ = poll::epoll_ctl(helper.set, libc::EPOLL_CTL_MOD, descriptor, events, ANY);
    }
}

/// Not any more.
pub(super) fn forget(descriptor: Fd) {
    if let Some(helper) = present() {
        let _ = poll::epoll_ctl(helper.set, libc::EPOLL_CTL_DEL, descriptor, 0, 0);
    }
}

/// Control of a link went to a relative, who may give it back.
pub(super) fn gave(link: &Arc<Link>) {
    if let Some(helper) = present() {
        let mut given = helper.lock_given();
        given.retain(|one| one.strong_count() > 0 && !std::ptr::eq(one.as_ptr(), &**link));
        given.push(Arc::downgrade(link));
    }
}

/// Ends a queue pair whose link goes on over another, in a moment.
pub(super) fn end_later(wire: Wire, link: Arc<Link>) {
    if let Some(helper) = present() {
        helper.lock_replaced().push((wire, link, time::now()));
    }
}

/// Ends a link as soon as its peer has everything.
pub(super) fn close(link: &Arc<Link>, users: Option<Box<dyn Users>>) {
    let Some(helper) = present() else { return };
    let closed = Closed { link: link.clone(), users, since: time::now() };
    helper.lock_closed().push(closed);
    BUSY.store(true, Ordering::SeqCst);
    link.let_helper_hear();
    kick(helper.kick);
}

/// Waits until every closed link has ended, and no TCP connection's end is kept back any more, as long as something goes on;
/// before the process exits.
pub(super) fn finish(patience: u64) {
    let Some(helper) = present() else { return };
    let since = time::now();
    let is_done = || {
        let _held = SignalsHeld::new();
        let _gate = no_fork();
        let leaving = time::now() - since < LEAVING;
        // Relatives that use one are to take control of it.
        helper.lock_closed().iter().all(|one| match one.link.is_foreign() {
            true => !one.gets_control(),
            false => one.is_used() && !(leaving && one.link.offer_control()),
        }) && !helper.lock_ports().iter().any(|port| port.has_any(Link::keeps_anchor))
    };
    while !is_done() && time::now() - since < patience {
        time::sleep(100_000);
    }
}

impl Helper {
    fn lock_ports(&self) -> std::sync::MutexGuard<'_, Vec<&'static Port>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_given(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Link>>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_replaced(&self) -> std::sync::MutexGuard<'_, Vec<(Wire, Arc<Link>, u64)>> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_retired(&self) -> std::sync::MutexGuard<'_, Vec<&'static Port>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_closed(&self) -> std::sync::MutexGuard<'_, Vec<Closed>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, descriptor: Fd, tag: u64) {
        let events = libc::EPOLLIN as u32;
        let _ = poll::epoll_ctl(self.set, libc::EPOLL_CTL_ADD, descriptor, events, tag);
    }

    fn run(&self) {
        process::let_library_signals_in();
        handlers::never_run_here();
        let mut idle = false;
        let mut looks = 0;
        let mut ticks_unseen = 0;
        // A link has something left to do, as of the last look at all of them.
        let mut links_are_busy = false;
        // How long (ns) to sleep at most while there is nothing to do.
        let mut longest = None;
        // Links whose connections go back to TCP.
        let mut returning: Vec<Arc<Link>> = Vec::new();
        // Somebody outside may want something: so often it is tried.
        let mut requests = 0;
        loop {
            // A fork may come meanwhile.
            let goes_on = |link: &Arc<Link>| CALLS.get().is_some_and(|calls| (calls.come_to)(link));
            let is_asked =
                requests > 0 && CALLS.get().is_some_and(|calls| (calls.serve_requests)());
            requests = if is_asked { requests - 1 } else { 0 };
            let (on, over) = returning.drain(..).partition(goes_on);
            returning = on;
            let seen_to: Vec<Arc<Link>> = over;
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
            let mut nap = Some(TICK);
            if idle && !is_asked {
                self.dormant.store(true, Ordering::SeqCst);
                // What there was to do before that woke nobody.
                if !self.has_work() {
                    nap = longest;
                }
            }
            let count = poll::epoll_wait(self.set, &mut events, nap, None).unwrap_or(0);
            let _gate = no_fork();
            // Perhaps the last of it.
            seen_to.into_iter().for_each(|link| link.is_seen_to());
            self.dormant.store(false, Ordering::SeqCst);
            let mut kicked = false;
            let tells = |tag| events[..count].iter().any(|event| event.u64 == tag);
            if tells(REMOVAL) {
                let lost = self.lock_ports().iter().copied().find(|port| port.loses_device());
                lost.into_iter().for_each(|port| self.retire(port));
            }
            if tells(KICK) {
                let mut value = [0u8; 8];
                let _ = file::read(self.kick, value.as_mut_ptr(), value.len());
                (kicked, requests) = (true, ATTEMPTS);
                while let Some(message) = self.mailbox.next() {
                    self.heed(&message);
                }
            }
            let ports = self.lock_ports().clone();
            for port in &ports {
                let woken = port.woken();
                port.take_notice();
                port.catch_up();
                // Who sleeps on had the queue tell of the next completion, and this was not the one. Who was woken looks by
                // itself.
                if !port.is_armed()
                    && port.woken() == woken
                    && port.has_any(Link::has_sleeper)
                    && port.arm()
                {
                    port.catch_up();
                }
            }
            rendezvous::search();
            let mut busy = rendezvous::progress() | berth::progress(self.mailbox.address);
            // The program looks by itself and arms the queue when it sleeps: not to be disturbed.
            let now = ports.iter().fold(0u32, |sum, port| sum.wrapping_add(port.looks()));
            let looked = now != looks;
            looks = now;
            ticks_unseen = match (looked, count) {
                (true, _) => 0,
                (false, 0) => AWAY_FOR.min(ticks_unseen + 1),
                (false, _) => ticks_unseen,
            };
            let away = ticks_unseen == AWAY_FOR;
            let tell = if kicked { Tell::Certain } else { Tell::All };
            if count == 0 || kicked || !looked {
                links_are_busy = false;
                for port in &ports {
                    port.each_link(|link| links_are_busy |= link.tick(tell));
                    let awaits = kicked || away || links_are_busy || is_busy();
                    if awaits && !port.is_armed() && port.arm() {
                        port.catch_up();
                    }
                }
            } else if links_are_busy {
                // A move waits for nobody.
                for port in &ports {
                    port.each_link(|link| link.progress());
                }
            }
            if links_are_busy {
                for port in &ports {
                    port.each_link(|link| {
                        if link.is_returning()
                            && !returning.iter().any(|one| Arc::ptr_eq(one, link))
                        {
                            returning.push(link.clone());
                        }
                    });
                }
            }
            busy |= links_are_busy | self.end_closed() | self.end_replaced();
            busy |= !returning.is_empty();
            busy |= self.close_retired();
            longest = rendezvous::next_search();
            BUSY.store(busy, Ordering::SeqCst);
            for port in &ports {
                if busy {
                    port.hearing.give_to_helper(port);
                } else if count == 0 {
                    port.hearing.tick(port);
                }
            }
            // Who uses connections would wake it again at once.
            idle = away && !busy && ports.iter().all(|port| port.is_attended());
        }
    }

    /// True if a link has something left to do, a peer is to be told something in a moment, or nobody else hears what completes.
    fn has_work(&self) -> bool {
        let _gate = no_fork();
        let has_work = |link: &Link| link.has_rest() || link.is_busy();
        self.lock_ports().iter().any(|port| !port.is_attended() || port.has_any(has_work))
    }

    /// The device of a port was removed: its connections end.
    fn retire(&self, port: &'static Port) {
        log::warn!("the RDMA device of {} was removed: its connections end", port.local);
        let watched = [port.descriptor(), port.watch()];
        port.retire();
        watched.into_iter().flatten().for_each(forget);
        super::forget(port);
        rendezvous::retire(port);
        berth::retire(port);
        self.lock_ports().retain(|one| !std::ptr::eq(*one, port));
        self.lock_retired().push(port);
    }

    /// Gives back what was made of devices that were removed, once nothing uses it; true if something does still.
    fn close_retired(&self) -> bool {
        let mut retired = self.lock_retired();
        retired.retain(|port| {
            port.each_link(|link| link.lose_device());
            self.lock_replaced().retain(|(_, link, _)| !std::ptr::eq(link.port(), *port));
            !port.close()
        });
        !retired.is_empty()
    }

    /// Does what another process's helper asks for. (Look: whatever it is, the loop comes to it.)
    fn heed(&self, message: &Message) {
        match message {
            Message::Look => {}
            Message::Want { link, berth } => {
                for port in self.lock_ports().iter() {
                    port.each_link(|one| {
                        if one.id() == *link {
                            one.move_to(berth);
                        }
                    });
                }
            }
            Message::Take { link } => {
                let given: Vec<_> = self.lock_given().iter().filter_map(Weak::upgrade).collect();
                given.iter().filter(|one| one.id() == *link).for_each(|one| one.take_back());
            }
            Message::Claim { secret, berth, from, tuple } => {
                rendezvous::claimed(*secret, berth, *from, tuple);
            }
            Message::Nobody { cookie } => berth::nobody(*cookie),
        }
    }

    /// Ends replaced queue pairs whose peers know by now; true if there are others.
    fn end_replaced(&self) -> bool {
        let mut replaced = self.lock_replaced();
        let now = time::now();
        let (over, kept) = replaced.drain(..).partition(|(.., since)| now - since > REPLACED);
        *replaced = kept;
        let left = !replaced.is_empty();
        drop(replaced);
        let over: Vec<(Wire, Arc<Link>, u64)> = over;
        for (wire, link, _) in over {
            wire.end();
            drop(link);
        }
        left
    }

    /// Ends the closed links whose peers have everything; true if there are others.
    fn end_closed(&self) -> bool {
        let mut closed = self.lock_closed();
        let mut over = Vec::new();
        let mut at = 0;
        while at < closed.len() {
            let one = &mut closed[at];
            if one.link.is_foreign() {
                if one.gets_control() {
                    at += 1;
                } else {
                    over.push(closed.swap_remove(at));
                }
                continue;
            }
            let used = one.is_used();
            one.link.tick(Tell::Certain);
            if used && !one.link.is_refused() && !one.link.has_returned() {
                one.since = time::now();
                at += 1;
                continue;
            }
            one.link.close_now();
            if one.link.is_drained() || time::now() - one.since > LINGER {
                one.link.note_delivered();
                over.push(closed.swap_remove(at));
            } else {
                at += 1;
            }
        }
        let left = !closed.is_empty();
        drop(closed);
        over.into_iter().for_each(Closed::dismiss);
        left
    }
}
