//! An adapter's device: its objects until it is removed, the room for what is sent over it, and its completion queue's
//! notification.

use super::memory::Pool;
use super::notification::Notification;
use super::receives;
use crate::provider::interface::client::*;
use crate::provider::interface::{Error, Limits, ProviderResult, Started};
use crate::sys::handlers::Uncancelled;
use crate::sys::Fd;
use std::cell::UnsafeCell;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Results that the completion queue holds, where the device can.
const COMPLETIONS: u32 = 4096;
/// Largest inline send that is used.
const INLINE: u32 = 256;
/// The watch's one pending operation.
const REMOVED: u64 = 1;

/// What links are made of.
#[derive(Clone)]
pub(in crate::fabric) struct Objects {
    /// Makes their objects.
    pub(in crate::fabric) adapter: Adapter,
    /// Where everything ends.
    pub(in crate::fabric) queue: CompletionQueue,
    /// Where everything arrives.
    pub(in crate::fabric) shared: SharedReceiveQueue,
    /// A connector that never connects: bound to the adapter's address, it is told when the device is removed.
    watch: Connector,
}

/// See the module. Never freed; empty once it was removed.
pub(in crate::fabric) struct Device {
    /// The adapter's address.
    pub(in crate::fabric) local: IpAddr,
    /// What it can do.
    pub(in crate::fabric) limits: Limits,
    /// There until the device was removed, and no thread uses them.
    objects: UnsafeCell<Option<Objects>>,
    /// Calls that use them at the moment.
    users: AtomicU32,
    /// Buffers for what is sent.
    pub(in crate::fabric) pool: Pool,
    /// There are receives.
    pub(super) prepared: AtomicBool,
    /// The device is no more, or about to go.
    retired: AtomicBool,
    /// Sends that may still complete, of all links.
    unfinished: AtomicU32,
    most_unfinished: u32,
    /// How many receives there may be.
    pub(super) most_receives: u32,
    /// Looks by the program's threads.
    looks: AtomicU32,
    /// Sleepers that were woken, of all links.
    woken: AtomicU32,
    /// The queue tells of the next completion.
    armed: AtomicBool,
    /// The threads that the queue's notification wakes.
    pub(super) notification: Notification,
}

// SAFETY: `objects` change only once no thread uses them. Any thread may use all else.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

impl Device {
    /// Results that the queue has room for.
    pub(super) fn most_completed(&self) -> usize {
        (self.most_unfinished + self.most_receives) as usize
    }

    pub(super) fn open(adapter: Adapter, local: IpAddr) -> ProviderResult<Self> {
        let limits = adapter.query();
        let completions = COMPLETIONS.min(limits.max_completion_depth);
        let receives = receives::MOST.min(limits.max_shared_receive_depth).min(completions / 2);
        // A link's sends may come before a receive is free for them.
        let is_unheld = limits.flags & Limits::UNHELD != 0;
        if is_unheld || receives < receives::STEP as u32 || limits.max_segments < 1 {
            return Err(Error::NotSupported);
        }
        let queue = adapter.create_completion_queue(completions)?;
        let shared = adapter.create_shared_receive_queue(receives)?;
        let watch = adapter.create_connector()?;
        watch.bind((local, 0).into())?;
        if watch.notify_disconnect(REMOVED)? != Started::Pending {
            return Err(Error::DeviceRemoved);
        }
        Ok(Device {
            local,
            limits,
            objects: UnsafeCell::new(Some(Objects { adapter, queue, shared, watch })),
            users: AtomicU32::new(0),
            pool: Pool::new(),
            prepared: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            unfinished: AtomicU32::new(0),
            most_unfinished: completions - receives,
            most_receives: receives,
            looks: AtomicU32::new(0),
            woken: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            notification: Notification::new(),
        })
    }

    /// Runs `f` with the objects. Waits for no thread, so that a signal handler may call this.
    fn using<T>(&self, f: impl FnOnce(&Objects) -> ProviderResult<T>) -> ProviderResult<T> {
        let _uncancelled = Uncancelled::begin();
        // Before the look, as `is_used` looks after `retire`.
        self.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: they are taken away only once no thread uses them, and every thread that comes finds the device
        // retired.
        let objects =
            (!self.is_retired()).then(|| unsafe { &*self.objects.get() }).and_then(Option::as_ref);
        let result = objects.ok_or(Error::DeviceRemoved).and_then(f);
        self.users.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// What links are made of.
    ///
    /// # Errors
    /// The device was removed.
    pub(in crate::fabric) fn objects(&self) -> ProviderResult<Objects> {
        self.using(|objects| Ok(objects.clone()))
    }

    /// True once the device is no more.
    pub(in crate::fabric) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// No link is made over it any more. By the helper.
    pub(in crate::fabric) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
    }

    /// Readable when the device is removed.
    pub(in crate::fabric) fn removal(&self) -> Option<Fd> {
        self.using(|objects| Ok(objects.watch.descriptor())).ok()
    }

    /// Takes the word that the device was removed: true, once, if it was.
    pub(in crate::fabric) fn take_loss(&self) -> bool {
        self.using(|objects| Ok(objects.watch.next_result().is_some())) == Ok(true)
    }

    /// True while a call uses the objects.
    pub(super) fn is_used(&self) -> bool {
        self.users.load(Ordering::SeqCst) != 0
    }

    /// Gives back what was made of it.
    ///
    /// # Safety
    /// It is retired and was seen not to be [used](Self::is_used) since.
    pub(super) unsafe fn close(&self) {
        drop(self.pool.close());
        // SAFETY: no thread uses the objects, and none will.
        drop(unsafe { (*self.objects.get()).take() });
    }

    /// The largest send whose bytes the device takes at once.
    pub(in crate::fabric) fn inline(&self) -> usize {
        self.limits.max_inline.min(INLINE) as usize
    }

    /// Announces a send; false: the completion queue has no room for its result, later.
    pub(in crate::fabric) fn announce_send(&self) -> bool {
        let before = self.unfinished.fetch_add(1, Ordering::Relaxed);
        if before < self.most_unfinished {
            return true;
        }
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// True while half of that room is taken: every send is to tell of its end, or links that fall silent
    /// keep it all.
    pub(in crate::fabric) fn is_short(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed) > self.most_unfinished / 2
    }

    /// So many announced sends are over.
    pub(in crate::fabric) fn sent(&self, count: u64) {
        self.unfinished.fetch_sub(count as u32, Ordering::Relaxed);
    }

    /// A thread of the program looks for completions.
    #[inline]
    pub(in crate::fabric) fn note_look(&self) {
        // Only ever compared: a count that is lost does no harm.
        self.looks.store(self.looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Changes while the program looks by itself.
    pub(in crate::fabric) fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }

    /// A sleeper is being woken.
    pub(in crate::fabric) fn wakes(&self) {
        self.woken.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes whenever a sleeper is woken.
    pub(in crate::fabric) fn woken(&self) -> u32 {
        self.woken.load(Ordering::Relaxed)
    }

    /// Has the queue tell of what completes from now on; true if it did not before. To be followed
    /// by a look before the program's handlers may run.
    pub(in crate::fabric) fn arm(&self) -> bool {
        if self.armed.load(Ordering::SeqCst) || self.armed.swap(true, Ordering::SeqCst) {
            return false;
        }
        match self.using(|objects| objects.queue.notify(0)) {
            Ok(Started::Pending) => {}
            // Done, or the last request is still being told.
            _ => self.armed.store(false, Ordering::SeqCst),
        }
        true
    }

    /// Readable when the queue tells.
    pub(in crate::fabric) fn descriptor(&self) -> Option<Fd> {
        self.using(|objects| Ok(objects.queue.descriptor())).ok()
    }

    /// Runs `f` with that, which stays what it is meanwhile; not if the device was removed.
    pub(super) fn with_descriptor(&self, f: impl FnOnce(Fd)) {
        let _ = self.using(|objects| {
            f(objects.queue.descriptor());
            Ok(())
        });
    }

    /// Takes what the queue told.
    pub(in crate::fabric) fn take_notice(&self) {
        // There is one request at a time. A look for a second result would be a system call in vain.
        if self.using(|objects| Ok(objects.queue.next_result().is_some())) == Ok(true) {
            self.armed.store(false, Ordering::SeqCst);
        }
    }

    /// True if a thread need not wait for anything, or the queue will tell of it.
    pub(in crate::fabric) fn is_armed(&self) -> bool {
        self.is_retired()
            || !self.prepared.load(Ordering::Acquire)
            || self.armed.load(Ordering::SeqCst)
    }
}
