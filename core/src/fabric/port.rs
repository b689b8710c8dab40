//! One adapter in use: its completion queue and shared receive queue, and the links over it.
//!
//! Whoever looks for something to happen takes what has completed, for all links: the program's
//! threads while they look, the helper otherwise. One at a time, and nobody waits for another.

use super::frame;
use super::hearing::Hearing;
use super::link::Link;
use super::memory::{Block, Pool};
use crate::provider::interface::client::*;
use crate::provider::interface::{Completion, Error, Limits, Result, Started};
use crate::sys::handlers::Undisturbed;
use crate::sys::{process, time, Fd};
use std::cell::UnsafeCell;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

/// Buffers for what comes in, for all links together.
const RECEIVES: u32 = 128;
/// Results that the completion queue holds, where the device can.
const COMPLETIONS: u32 = 4096;
/// Results taken at a time.
const BATCH: usize = 16;
/// How long another thread that takes completions is waited for: so many yields, then so many naps (ns). One that
/// has no processor for as long was stopped.
const YIELDS: u32 = 1000;
const NAPS: u32 = 100_000;
const NAP: u64 = 100_000;
/// Marks the request of a receive.
const RECEIVE: u64 = 1 << 63;
/// Largest inline send that is used.
const INLINE: u32 = 256;
/// The watch's one pending operation.
const REMOVED: u64 = 1;

/// What links are made of.
#[derive(Clone)]
pub(super) struct Device {
    /// Makes their objects.
    pub(super) adapter: Adapter,
    /// Where everything ends.
    pub(super) queue: CompletionQueue,
    /// Where everything arrives.
    pub(super) shared: SharedReceiveQueue,
    /// A connector that never connects: bound to the adapter's address, it is told when the device is removed.
    watch: Connector,
}

/// What completions are taken with.
struct Intake {
    queue: CompletionQueue,
    shared: SharedReceiveQueue,
    /// Made before the first link.
    receives: Option<Block>,
}

/// See the module. Never freed; empty once its device was removed.
pub(super) struct Port {
    /// The adapter's address.
    pub(super) local: IpAddr,
    /// What it can do.
    pub(super) limits: Limits,
    /// Until it was removed, and nobody is using it.
    device: UnsafeCell<Option<Device>>,
    /// Calls that use it at the moment.
    users: AtomicU32,
    /// Buffers for what is sent.
    pub(super) pool: Pool,
    /// There are receives.
    prepared: AtomicBool,
    /// The device is no more, or about to go.
    retired: AtomicBool,
    /// Sends that may still complete, of all links.
    unfinished: AtomicU32,
    most_unfinished: u32,
    depth: u32,
    /// Looks by the program's threads.
    looks: AtomicU32,
    /// Sleepers that were woken, of all links.
    woken: AtomicU32,
    /// The queue tells of the next completion.
    armed: AtomicBool,
    /// Whom it tells.
    pub(super) hearing: Hearing,
    /// Held to take completions, and to change the list of links.
    polling: AtomicBool,
    links: UnsafeCell<Vec<Option<Arc<Link>>>>,
    intake: UnsafeCell<Option<Intake>>,
}

// SAFETY: `links` and `intake` are only reached while `polling` is held; all else may be used by any thread.
unsafe impl Sync for Port {}
// SAFETY: as above.
unsafe impl Send for Port {}

/// The calling thread takes completions, which no handler finds half taken; until dropped.
struct Polling<'a> {
    port: &'a Port,
    /// Behind the end of that.
    _undisturbed: Undisturbed,
}

impl Drop for Polling<'_> {
    #[inline]
    fn drop(&mut self) {
        self.port.polling.store(false, Ordering::Release);
    }
}

impl Intake {
    fn post(&self, index: usize) -> Result<()> {
        let block = self.receives.as_ref().ok_or(Error::InvalidParameter)?;
        let segment = block.buffer(index).segment(frame::LARGEST);
        self.shared.receive(index as u64 | RECEIVE, &[segment])
    }
}

impl Port {
    pub(super) fn open(adapter: Adapter, local: IpAddr) -> Result<&'static Self> {
        let limits = adapter.query();
        let receives = RECEIVES.min(limits.max_shared_receive_depth);
        let completions = COMPLETIONS.min(limits.max_completion_depth);
        if receives < 16 || completions < 2 * receives || limits.max_segments < 1 {
            return Err(Error::NotSupported);
        }
        let queue = adapter.create_completion_queue(completions)?;
        let shared = adapter.create_shared_receive_queue(receives)?;
        let watch = adapter.create_connector()?;
        watch.bind((local, 0).into())?;
        if watch.notify_disconnect(REMOVED)? != Started::Pending {
            return Err(Error::DeviceRemoved);
        }
        let intake = Intake { queue: queue.clone(), shared: shared.clone(), receives: None };
        let port = Port {
            local,
            device: UnsafeCell::new(Some(Device { adapter, queue, shared, watch })),
            users: AtomicU32::new(0),
            pool: Pool::new(),
            prepared: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            depth: receives,
            limits,
            unfinished: AtomicU32::new(0),
            most_unfinished: completions - receives,
            looks: AtomicU32::new(0),
            woken: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            hearing: Hearing::default(),
            polling: AtomicBool::new(false),
            links: UnsafeCell::default(),
            intake: UnsafeCell::new(Some(intake)),
        };
        Ok(Box::leak(Box::new(port)))
    }

    /// Runs `f` with the device. Waits for nobody, so that a signal handler may.
    fn using<T>(&self, f: impl FnOnce(&Device) -> Result<T>) -> Result<T> {
        // Before the look, as `close` looks after `retire`.
        self.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: taken away only once nobody uses it and everybody who comes finds it retired.
        let device =
            (!self.is_retired()).then(|| unsafe { &*self.device.get() }).and_then(Option::as_ref);
        let result = device.ok_or(Error::DeviceRemoved).and_then(f);
        self.users.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// What links are made of.
    ///
    /// # Errors
    /// The device was removed.
    pub(super) fn device(&self) -> Result<Device> {
        self.using(|device| Ok(device.clone()))
    }

    /// True once the device is no more.
    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// No link is made over it any more. By the helper.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
    }

    /// Readable when the device is removed.
    pub(super) fn watch(&self) -> Option<Fd> {
        self.using(|device| Ok(device.watch.descriptor())).ok()
    }

    /// True, once, if the device was removed.
    pub(super) fn loses_device(&self) -> bool {
        self.using(|device| Ok(device.watch.next_result().is_some())) == Ok(true)
    }

    /// Gives everything back that was made of the device; false: links use it still. By the helper, after
    /// [`retire`](Self::retire).
    pub(super) fn close(&self) -> bool {
        let intake = self.with_links(|links| {
            let is_used = self.users.load(Ordering::SeqCst) != 0;
            // SAFETY: `polling` is held.
            let intake = unsafe { &mut *self.intake.get() };
            (!is_used && links.iter().all(Option::is_none)).then(|| intake.take())
        });
        let Some(intake) = intake else { return false };
        // Outside of any lock: closing takes its time.
        drop(intake);
        drop(self.pool.close());
        // SAFETY: nobody uses it, and nobody will.
        drop(unsafe { (*self.device.get()).take() });
        true
    }

    /// Before the first link: posts the receives.
    pub(super) fn prepare(&self) -> Result<()> {
        if self.prepared.load(Ordering::Acquire) {
            return Ok(());
        }
        let block = Block::new(&self.device()?.adapter, self.depth as usize)?;
        self.with_links(|_| {
            // SAFETY: `polling` is held.
            let Some(intake) = (unsafe { &mut *self.intake.get() }) else {
                return Err(Error::DeviceRemoved);
            };
            if intake.receives.is_none() {
                intake.receives = Some(block);
                for index in 0..self.depth {
                    intake.post(index as usize)?;
                }
                self.prepared.store(true, Ordering::Release);
            }
            Ok(())
        })
    }

    /// Largest send whose bytes are taken at once.
    pub(super) fn inline(&self) -> usize {
        self.limits.max_inline.min(INLINE) as usize
    }

    /// Announces a send; false: the completion queue has no room for its result, later.
    pub(super) fn may_send(&self) -> bool {
        let before = self.unfinished.fetch_add(1, Ordering::Relaxed);
        if before < self.most_unfinished {
            return true;
        }
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// True while half of that room is taken: every send is to tell of its end, or links that fall silent
    /// keep it all.
    pub(super) fn is_short(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed) > self.most_unfinished / 2
    }

    /// So many announced sends are over.
    pub(super) fn sent(&self, count: u64) {
        self.unfinished.fetch_sub(count as u32, Ordering::Relaxed);
    }

    /// Takes `polling`, unless it is held.
    #[inline]
    fn begin(&self) -> Option<Polling<'_>> {
        if self.polling.load(Ordering::Relaxed) {
            return None;
        }
        let undisturbed = Undisturbed::begin();
        if self.polling.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(Polling { port: self, _undisturbed: undisturbed })
    }

    /// Runs `f` with the links, waiting for whoever has them.
    fn with_links<T>(&self, f: impl FnOnce(&mut Vec<Option<Arc<Link>>>) -> T) -> T {
        let _polling = loop {
            match self.begin() {
                Some(polling) => break polling,
                None => process::yield_now(),
            }
        };
        // SAFETY: `polling` is held.
        f(unsafe { &mut *self.links.get() })
    }

    /// Runs `f` while nobody takes completions.
    pub(super) fn while_nobody_polls<T>(&self, f: impl FnOnce() -> T) -> T {
        self.with_links(|_| f())
    }

    /// A place for a link, whose number its queue pair carries.
    ///
    /// # Errors
    /// Without memory for what arrives.
    pub(super) fn reserve(&self) -> Result<u64> {
        self.prepare()?;
        Ok(self.with_links(|links| {
            // A number is not used again: a late completion must not reach another link. The list
            // is short enough to be kept, eight bytes for each connection there ever was.
            links.push(None);
            links.len() as u64 - 1
        }))
    }

    /// The link of a place: completions reach it from now on.
    pub(super) fn enter(&self, number: u64, link: &Arc<Link>) {
        self.with_links(|links| links[number as usize] = Some(link.clone()));
    }

    /// Nothing reaches the link any more.
    pub(super) fn leave(&self, number: u64) -> Option<Arc<Link>> {
        self.with_links(|links| links.get_mut(number as usize)?.take())
    }

    /// Takes what has completed by now, waiting for a thread that is at it.
    pub(super) fn catch_up(&self) {
        for attempt in 0..YIELDS + NAPS {
            if self.poll() {
                break;
            }
            match attempt < YIELDS {
                true => process::yield_now(),
                false => time::sleep(NAP),
            }
        }
    }

    /// [`poll`](Self::poll) by a thread of the program.
    #[inline]
    pub(super) fn look(&self) {
        // Only ever compared: a count that is lost does no harm.
        self.looks.store(self.looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.poll();
    }

    /// Changes while the program looks by itself.
    pub(super) fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }

    /// A sleeper is being woken.
    pub(super) fn wakes(&self) {
        self.woken.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes whenever a sleeper is woken.
    pub(super) fn woken(&self) -> u32 {
        self.woken.load(Ordering::Relaxed)
    }

    /// True if that is so of any link; the newest first.
    pub(super) fn has_any(&self, is_one: impl Fn(&Link) -> bool) -> bool {
        self.with_links(|links| links.iter().rev().flatten().any(|link| is_one(link)))
    }

    /// Takes what has completed, unless another thread is at it (false).
    #[inline]
    pub(super) fn poll(&self) -> bool {
        let Some(_polling) = self.begin() else { return false };
        let mut batch = [Completion::default(); BATCH];
        // SAFETY: `polling` is held.
        while let Some(intake) = unsafe { &*self.intake.get() } {
            let count = intake.queue.get_results(&mut batch).unwrap_or(0);
            for completion in &batch[..count] {
                // SAFETY: `polling` is held.
                self.dispatch(intake, unsafe { &*self.links.get() }, completion);
            }
            if count < BATCH {
                break;
            }
        }
        true
    }

    fn dispatch(&self, intake: &Intake, links: &[Option<Arc<Link>>], completion: &Completion) {
        let link = links.get(completion.queue_pair as usize).and_then(Option::as_ref);
        let result = completion.result();
        if completion.request & RECEIVE == 0 {
            if let Some(link) = link {
                link.completed(completion, result.map(drop));
            }
            return;
        }
        let index = (completion.request & !RECEIVE) as usize;
        let Some(block) = &intake.receives else { return };
        match (link, result) {
            (Some(link), Ok(length)) => {
                let from = block.buffer(index).at;
                let length = (length as usize).min(frame::LARGEST);
                // SAFETY: the buffer is ours until it is posted again.
                let frame = unsafe { std::slice::from_raw_parts(from, length) };
                link.arrived_over(completion.queue_pair, frame);
            }
            (Some(link), Err(why)) => link.fail_over(completion.queue_pair, why),
            (None, _) => {}
        }
        if let Err(why) = intake.post(index) {
            log::error!("a receive buffer is lost: {why}");
        }
    }

    /// Has the queue tell of what completes from now on; true if it did not before. To be followed
    /// by a look before the program's handlers may run.
    pub(super) fn arm(&self) -> bool {
        if self.armed.load(Ordering::SeqCst) || self.armed.swap(true, Ordering::SeqCst) {
            return false;
        }
        match self.using(|device| device.queue.notify(0)) {
            Ok(Started::Pending) => {}
            // Done, or the last request is still being told.
            _ => self.armed.store(false, Ordering::SeqCst),
        }
        true
    }

    /// Readable when the queue tells.
    pub(super) fn descriptor(&self) -> Option<Fd> {
        self.using(|device| Ok(device.queue.descriptor())).ok()
    }

    /// Runs `f` with that, which stays what it is meanwhile; not if the device was removed.
    pub(super) fn with_descriptor(&self, f: impl FnOnce(Fd)) {
        let _ = self.using(|device| {
            f(device.queue.descriptor());
            Ok(())
        });
    }

    /// Takes what the queue told.
    pub(super) fn take_notice(&self) {
        while self.using(|device| Ok(device.queue.next_result().is_some())) == Ok(true) {
            self.armed.store(false, Ordering::SeqCst);
        }
    }

    /// True if nothing is to be waited for, or the queue will tell of it.
    pub(super) fn is_armed(&self) -> bool {
        self.is_retired()
            || !self.prepared.load(Ordering::Acquire)
            || self.armed.load(Ordering::SeqCst)
    }

    /// True if somebody is told of what completes from now on, if anything may.
    pub(super) fn is_attended(&self) -> bool {
        self.is_armed() && (self.is_retired() || self.hearing.is_helpers())
    }

    /// Every link, once.
    pub(super) fn each_link(&self, mut each: impl FnMut(&Arc<Link>)) {
        let all: Vec<_> = self.with_links(|links| links.iter().flatten().cloned().collect());
        all.iter().for_each(&mut each);
    }
}
