//! The helper thread as all others see it: they start it when they first need it, wake it, and give it descriptors to
//! watch. `background` installs the thread's work, which this module does not know.
//!
//! A process has no helper until it opens its first port, and a fork child has none. The helper blocks all signals.

use super::mailbox::{HelperMessage, Mailbox, MailboxAddress};
use crate::sys::lock_order::{LockRank, RankedMutex};
use crate::sys::process::SignalsHeld;
use crate::sys::{file, hidden, poll, thread, time, Errno, Fd};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::OnceLock;

/// The kinds of descriptors in the set: those of other processes or threads, of a device's removal, and all others.
const KICK: u64 = 0;
const ANY: u64 = 1;
const REMOVAL: u64 = 2;

/// How long (ns) the thread sleeps at a time once the program has put a file of its own where its epoll set was.
const NAP_WITHOUT_SET: u64 = 1_000_000;

/// See the module. Never freed.
pub(super) struct Helper {
    set: Fd,
    kick: Fd,
    mailbox: Mailbox,
    /// It sleeps for as long as nothing is told.
    dormant: AtomicBool,
}

/// What the thread is for.
#[derive(Debug)]
pub(super) struct HelperWork {
    /// All that it does; never returns.
    pub(super) run: fn(&'static Helper),
    /// Others may send to it there.
    pub(super) reachable: fn(MailboxAddress),
}

/// What ended a sleep.
pub(super) struct Told {
    /// Descriptors that told something.
    pub(super) count: usize,
    /// Another process or thread woke it.
    pub(super) kicked: bool,
    /// A device was removed.
    pub(super) removal: bool,
}

static WORK: OnceLock<HelperWork> = OnceLock::new();
/// Something is under way that what completes may bring on.
static BUSY: AtomicBool = AtomicBool::new(false);
static HELPER: AtomicPtr<Helper> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: RankedMutex<()> = RankedMutex::new(LockRank::HelperStarts, ());

/// Before the thread is needed: what it does.
pub(super) fn install(work: HelperWork) {
    let _ = WORK.set(work);
}

fn present() -> Option<&'static Helper> {
    // SAFETY: never freed.
    unsafe { HELPER.load(Ordering::Acquire).as_ref() }
}

fn helper() -> Option<&'static Helper> {
    if let Some(helper) = present() {
        return Some(helper);
    }
    let work = WORK.get()?;
    let _starting = STARTING.lock();
    if let Some(helper) = present() {
        return Some(helper);
    }
    let helper = Helper::open()?;
    // The thread inherits the mask: no signal of the program is ever delivered to it.
    let held = SignalsHeld::new();
    let started = thread::builder().spawn(|| (work.run)(helper));
    drop(held);
    if let Err(why) = started {
        log::warn!("no RDMA: the helper thread could not be started: {why}");
        return None;
    }
    HELPER.store(std::ptr::from_ref(helper).cast_mut(), Ordering::Release);
    (work.reachable)(helper.mailbox.address);
    Some(helper)
}

/// In a fork child: the thread is the parent's.
pub(super) fn after_fork_in_child() {
    HELPER.store(std::ptr::null_mut(), Ordering::Relaxed);
}

/// Starts it, unless it is there; false: it cannot be.
pub(super) fn start() -> bool {
    helper().is_some()
}

/// True if this process has one.
pub(super) fn is_there() -> bool {
    present().is_some()
}

/// The mailbox of this process's helper: a socket to send from, which fork relatives inherit, and where
/// to send to.
pub(super) fn mailbox() -> Option<(Fd, MailboxAddress)> {
    helper().map(|helper| (helper.mailbox.fd, helper.mailbox.address))
}

/// Where to send to this process's helper, if it has one.
pub(super) fn own_mailbox() -> Option<MailboxAddress> {
    present().map(|helper| helper.mailbox.address)
}

/// True if the queues are to notify the helper at once of what completes.
pub(super) fn is_busy() -> bool {
    BUSY.load(Ordering::SeqCst)
}

/// Whether it is.
pub(super) fn set_busy(busy: bool) {
    BUSY.store(busy, Ordering::SeqCst);
}

/// Has this process's helper look.
pub(super) fn wake() {
    if let Some(helper) = present() {
        kick(helper.kick);
    }
}

fn kick(descriptor: Fd) {
    let one = 1u64.to_ne_bytes();
    let _ = file::write(hidden::kept(descriptor), one.as_ptr(), one.len());
}

/// Has the helper look, if it sleeps for longer.
pub(super) fn wake_if_dormant() {
    if let Some(helper) = present() {
        if helper.dormant.load(Ordering::SeqCst) && helper.dormant.swap(false, Ordering::SeqCst) {
            kick(helper.kick);
        }
    }
}

/// Has the helper look when a descriptor is readable.
pub(super) fn watch(descriptor: Fd) {
    if let Some(helper) = helper() {
        let _ = helper.add(descriptor, ANY);
    }
}

/// Has the helper look for devices that were removed when a descriptor is readable.
pub(super) fn watch_removal(descriptor: Fd) {
    if let Some(helper) = helper() {
        let _ = helper.add(descriptor, REMOVAL);
    }
}

/// Whether the helper looks when that descriptor, which it watches, is readable.
pub(super) fn notify(descriptor: Fd, does: bool) {
    if let Some(helper) = present() {
        let events = if does { libc::EPOLLIN as u32 } else { 0 };
        let _ =
            poll::epoll_ctl(hidden::kept(helper.set), libc::EPOLL_CTL_MOD, descriptor, events, ANY);
    }
}

/// Takes the descriptor out of the set.
pub(super) fn forget(descriptor: Fd) {
    if let Some(helper) = present() {
        let _ = poll::epoll_ctl(hidden::kept(helper.set), libc::EPOLL_CTL_DEL, descriptor, 0, 0);
    }
}

impl Helper {
    fn open() -> Option<&'static Self> {
        let (set, kick) = (poll::epoll_create().ok()?, file::eventfd(0).ok()?);
        let (set, kick) = (hidden::keep(set), hidden::keep(kick));
        let mailbox = Mailbox::open().ok()?;
        let helper = Helper { set, kick, mailbox, dormant: AtomicBool::new(false) };
        for fd in [helper.kick, helper.mailbox.fd] {
            helper.add(fd, KICK).ok()?;
        }
        Some(Box::leak(Box::new(helper)))
    }

    fn add(&self, descriptor: Fd, tag: u64) -> crate::sys::Result<()> {
        let events = libc::EPOLLIN as u32;
        poll::epoll_ctl(hidden::kept(self.set), libc::EPOLL_CTL_ADD, descriptor, events, tag)
    }

    /// The helper calls this. It says whether the helper sleeps until somebody tells it something. A thread that brings
    /// it work then wakes it.
    pub(super) fn set_dormant(&self, dormant: bool) {
        self.dormant.store(dormant, Ordering::SeqCst);
    }

    /// The helper calls this. It sleeps until a descriptor tells something, or for so long (ns).
    pub(super) fn sleep(&self, nap: Option<u64>) -> Told {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let slept = poll::epoll_wait(hidden::kept(self.set), &mut events, nap, None);
        let count = slept.unwrap_or_else(|e| {
            if e == Errno(libc::EBADF) {
                time::sleep(NAP_WITHOUT_SET);
            }
            0
        });
        let tells = |tag| events[..count].iter().any(|event| event.u64 == tag);
        Told { count, kicked: tells(KICK), removal: tells(REMOVAL) }
    }

    /// By the thread, which was kicked. To be followed by a look at the [messages](Self::next_message).
    pub(super) fn take_kick(&self) {
        let mut value = [0u8; 8];
        let _ = file::read(hidden::kept(self.kick), value.as_mut_ptr(), value.len());
    }

    /// The next message of another process's helper, without waiting.
    pub(super) fn next_message(&self) -> Option<HelperMessage> {
        self.mailbox.next()
    }

    /// Where to send to it.
    pub(super) fn address(&self) -> MailboxAddress {
        self.mailbox.address
    }
}
