//! One adapter in use: its completion queue and shared receive queue, and the links over it.
//!
//! Whoever looks for something to happen takes what has completed, for all links: the program's
//! threads while they look, the helper otherwise. One at a time, and nobody waits for another.

use super::frame;
use super::generation;
use super::link::Link;
use super::memory::{Block, Pool};
use crate::provider::interface::client::*;
use crate::provider::interface::{Completion, Error, Limits, Result, Started};
use crate::sys::{process, Fd};
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Buffers for what comes in, for all links together.
const RECEIVES: u32 = 128;
/// Results that the completion queue holds, where the device can.
const COMPLETIONS: u32 = 4096;
/// Results taken at a time.
const BATCH: usize = 16;
/// How long, in yields, another thread that takes completions is waited for.
const ATTEMPTS: u32 = 100_000;
/// Marks the request of a receive.
const RECEIVE: u64 = 1 << 63;
/// Largest inline send that is used.
const INLINE: u32 = 256;
/// The watch's one pending operation.
const REMOVED: u64 = 1;

/// What a port has of its adapter. Fields end in this order.
pub(super) struct Device {
    /// A connector that never connects: bound to the adapter's address, it is told when the device is removed.
    watch: Connector,
    /// Buffers for what is sent.
    pub(super) pool: Pool,
    /// Made with the first link.
    receives: OnceLock<Block>,
    /// Where everything arrives.
    pub(super) shared: SharedReceiveQueue,
    /// Where everything ends.
    pub(super) queue: CompletionQueue,
    /// Makes the links' objects.
    pub(super) adapter: Adapter,
}

/// See the module. Closed with the last that holds it, once the device was removed; else never.
pub(super) struct Port {
    /// The adapter's address.
    pub(super) local: IpAddr,
    /// What it can do.
    pub(super) limits: Limits,
    /// What it has of it.
    pub(super) device: ManuallyDrop<Device>,
    /// The process whose objects these are.
    made_in: u32,
    /// Sends that may still complete, of all links.
    unfinished: AtomicU32,
    most_unfinished: u32,
    depth: u32,
    /// Looks by the program's threads.
    looks: AtomicU32,
    /// The queue tells of the next completion.
    armed: AtomicBool,
    /// Held to take completions, and to change the list of links.
    polling: AtomicBool,
    links: UnsafeCell<Vec<Option<Arc<Link>>>>,
}

// SAFETY: `links` is only reached while `polling` is held; all else may be used by any thread.
unsafe impl Sync for Port {}
// SAFETY: as above.
unsafe impl Send for Port {}

impl Port {
    pub(super) fn open(adapter: Adapter, local: IpAddr) -> Result<Arc<Self>> {
        let limits = adapter.query();
        let receives = RECEIVES.min(limits.max_shared_receive_depth);
        let completions = COMPLETIONS.min(limits.max_completion_depth);
        if receives < 16 || completions < 2 * receives || limits.max_segments < 1 {
            return Err(Error::NotSupported);
        }
        let watch = adapter.create_connector()?;
        watch.bind((local, 0).into())?;
        if watch.notify_disconnect(REMOVED)? != Started::Pending {
            return Err(Error::DeviceRemoved);
        }
        let device = Device {
            watch,
            pool: Pool::new(),
            receives: OnceLock::new(),
            shared: adapter.create_shared_receive_queue(receives)?,
            queue: adapter.create_completion_queue(completions)?,
            adapter,
        };
        Ok(Arc::new(Port {
            local,
            device: ManuallyDrop::new(device),
            made_in: generation(),
            depth: receives,
            limits,
            unfinished: AtomicU32::new(0),
            most_unfinished: completions - receives,
            looks: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            polling: AtomicBool::new(false),
            links: UnsafeCell::default(),
        }))
    }

    /// Readable when the device is removed.
    pub(super) fn watch(&self) -> Fd {
        self.device.watch.descriptor()
    }

    /// True, once, if the device was removed. By the helper, which then retires the port.
    pub(super) fn loses_device(&self) -> bool {
        self.device.watch.next_result().is_some()
    }

    /// Before the first link: posts the receives.
    pub(super) fn prepare(&self) -> Result<()> {
        if self.device.receives.get().is_some() {
            return Ok(());
        }
        let block = Block::new(&self.device.adapter, self.depth as usize)?;
        if self.device.receives.set(block).is_ok() {
            for index in 0..self.depth {
                self.post(index as usize)?;
            }
        }
        Ok(())
    }

    /// Largest send whose bytes are taken at once.
    pub(super) fn inline(&self) -> usize {
        self.limits.max_inline.min(INLINE) as usize
    }

    fn post(&self, index: usize) -> Result<()> {
        let block = self.device.receives.get().ok_or(Error::InvalidParameter)?;
        let segment = block.buffer(index).segment(frame::LARGEST);
        self.device.shared.receive(index as u64 | RECEIVE, &[segment])
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

    /// Runs `f` with the links, waiting for whoever has them. Not in a signal handler.
    fn with_links<T>(&self, f: impl FnOnce(&mut Vec<Option<Arc<Link>>>) -> T) -> T {
        // A signal handler of this thread that looks for completions meanwhile finds them taken.
        while self.polling.swap(true, Ordering::Acquire) {
            process::yield_now();
        }
        // SAFETY: `polling` is held.
        let result = f(unsafe { &mut *self.links.get() });
        self.polling.store(false, Ordering::Release);
        result
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

    /// Takes what has completed by now, waiting for a thread that is at it, unless that is the one
    /// that a signal handler interrupted.
    pub(super) fn catch_up(&self) {
        for _ in 0..ATTEMPTS {
            if self.poll() {
                break;
            }
            process::yield_now();
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

    /// Takes what has completed, unless another thread is at it (false).
    #[inline]
    pub(super) fn poll(&self) -> bool {
        if self.polling.load(Ordering::Relaxed) || self.polling.swap(true, Ordering::Acquire) {
            return false;
        }
        let mut batch = [Completion::default(); BATCH];
        loop {
            let count = self.device.queue.get_results(&mut batch).unwrap_or(0);
            for completion in &batch[..count] {
                // SAFETY: `polling` is held.
                self.dispatch(unsafe { &*self.links.get() }, completion);
            }
            if count < BATCH {
                break;
            }
        }
        self.polling.store(false, Ordering::Release);
        true
    }

    fn dispatch(&self, links: &[Option<Arc<Link>>], completion: &Completion) {
        let link = links.get(completion.queue_pair as usize).and_then(Option::as_ref);
        let result = completion.result();
        if completion.request & RECEIVE == 0 {
            if let Some(link) = link {
                link.completed(completion, result.map(drop));
            }
            return;
        }
        let index = (completion.request & !RECEIVE) as usize;
        let Some(block) = self.device.receives.get() else { return };
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
        if let Err(why) = self.post(index) {
            log::error!("a receive buffer is lost: {why}");
        }
    }

    /// Has the queue tell of what completes from now on; true if it did not before. To be followed
    /// by a look.
    pub(super) fn arm(&self) -> bool {
        if self.armed.load(Ordering::SeqCst) || self.armed.swap(true, Ordering::SeqCst) {
            return false;
        }
        match self.device.queue.notify(0) {
            Ok(Started::Pending) => {}
            // Done, or the last request is still being told.
            _ => self.armed.store(false, Ordering::SeqCst),
        }
        true
    }

    /// Readable when the queue tells.
    pub(super) fn descriptor(&self) -> Fd {
        self.device.queue.descriptor()
    }

    /// Takes what the queue told.
    pub(super) fn take_notice(&self) {
        while self.device.queue.next_result().is_some() {
            self.armed.store(false, Ordering::SeqCst);
        }
    }

    /// True if nothing is to be waited for, or the queue will tell of it.
    pub(super) fn is_armed(&self) -> bool {
        self.device.receives.get().is_none() || self.armed.load(Ordering::SeqCst)
    }

    /// Every link, once.
    pub(super) fn each_link(&self, mut each: impl FnMut(&Arc<Link>)) {
        let all: Vec<_> = self.with_links(|links| links.iter().flatten().cloned().collect());
        all.iter().for_each(&mut each);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // A fork child's copy is the parent's.
        if self.made_in == generation() {
            // SAFETY: nothing uses it any more, and it is not dropped again.
            unsafe { ManuallyDrop::drop(&mut self.device) }
        }
    }
}
