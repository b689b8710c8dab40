//! Routes completions: from a queue pair's number to the link that it belongs to.
//!
//! A thread that looks for something to happen takes all that has completed, for every link. The program's threads do
//! that while they look, and the helper does it otherwise. One thread at a time does it, and no thread waits for
//! another.

use super::device::{Device, Objects};
use super::memory::Block;
use super::places::Places;
use super::receives::{needed, Receives, STEP};
use crate::fabric::frame;
use crate::provider::interface::client::*;
use crate::provider::interface::{Completion, Error, ProviderResult, RequestKind};
use crate::sys::handlers::Undisturbed;
use crate::sys::process;
use std::cell::UnsafeCell;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Results taken at a time.
const BATCH: usize = 16;

/// What completed of a queue pair.
pub(in crate::fabric) enum PairEvent<'a> {
    /// This request, and all before it.
    Sent(u64),
    /// A frame arrived.
    Arrived(&'a [u8]),
    /// The peer wrote so many bytes by RDMA.
    Written(u32),
    /// It broke.
    Failed(Error),
}

/// The buffers into which completions are taken.
struct Intake {
    queue: CompletionQueue,
    receives: Receives,
}

/// See the module. A port is never freed. `T` is what completions are for: a link.
pub(in crate::fabric) struct Port<T> {
    /// The device that it is over.
    pub(in crate::fabric) device: Device,
    /// Held to take completions, and to change the list.
    polling: AtomicBool,
    links: UnsafeCell<Places<T>>,
    intake: UnsafeCell<Option<Intake>>,
}

// SAFETY: `links` and `intake` are only reached while `polling` is held; all else may be used by any thread.
unsafe impl<T: Send + Sync> Sync for Port<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Port<T> {}

/// The calling thread takes completions, which no handler finds half taken; until dropped.
struct Polling<'a> {
    polling: &'a AtomicBool,
    /// Behind the end of that.
    _undisturbed: Undisturbed,
}

impl Drop for Polling<'_> {
    #[inline]
    fn drop(&mut self) {
        self.polling.store(false, Ordering::Release);
    }
}

impl<T> Port<T> {
    pub(in crate::fabric) fn open(
        adapter: Adapter,
        local: IpAddr,
    ) -> ProviderResult<&'static Self> {
        let device = Device::open(adapter, local)?;
        let Objects { queue, shared, .. } = device.objects()?;
        let intake = Intake { queue, receives: Receives::new(shared, device.most_receives) };
        let port = Port {
            device,
            polling: AtomicBool::new(false),
            links: UnsafeCell::default(),
            intake: UnsafeCell::new(Some(intake)),
        };
        Ok(Box::leak(Box::new(port)))
    }

    /// Gives everything back that was made of the device; false: links use it still. By the helper, once it is
    /// [retired](Device::retire).
    pub(in crate::fabric) fn close(&self) -> bool {
        let intake = self.with_links(|links| {
            let is_used = self.device.is_used();
            // SAFETY: `polling` is held.
            let intake = unsafe { &mut *self.intake.get() };
            (!is_used && links.links().next().is_none()).then(|| intake.take())
        });
        let Some(intake) = intake else { return false };
        // Outside of any lock: closing takes its time.
        drop(intake);
        // SAFETY: retired, and not used since.
        unsafe { self.device.close() };
        true
    }

    /// Before a link is made: has receives for one more, and a few buffers for sending, without which nothing goes out.
    ///
    /// # Errors
    /// There is no memory for the first of them.
    pub(in crate::fabric) fn prepare(&self) -> ProviderResult<()> {
        let device = &self.device;
        let adapter = || Ok(device.objects()?.adapter);
        while let Some(count) = self.lacks_receives()? {
            match Block::new(&adapter()?, STEP) {
                Ok(block) => {
                    let surplus =
                        self.with_intake(|_, intake| match intake.receives.may_grow() {
                            true => intake.receives.add(block).map(|()| None),
                            false => Ok(Some(block)),
                        })?;
                    // Its registration ends at the device, so no thread that takes completions waits for that.
                    drop(surplus);
                }
                Err(why) if count == 0 => return Err(why),
                Err(why) => {
                    log::info!("{}: {count} receives and no more: {why}", device.local);
                    break;
                }
            }
        }
        if !device.prepared.load(Ordering::Acquire) {
            device.pool.grow(&adapter()?)?;
            device.prepared.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// How many receives there are, if one link more needs more of them and there is room.
    fn lacks_receives(&self) -> ProviderResult<Option<usize>> {
        self.with_intake(|links, Intake { receives, .. }| {
            let count = receives.count();
            let lacks = count < needed(links.count() + 1) && receives.may_grow();
            Ok(lacks.then_some(count))
        })
    }

    /// How many receives there are.
    #[cfg(test)]
    pub(in crate::fabric) fn receives(&self) -> usize {
        self.with_intake(|_, intake| Ok(intake.receives.count())).unwrap()
    }

    /// Runs `f` with the links and the buffers, unless the device was removed.
    fn with_intake<R>(
        &self,
        f: impl FnOnce(&Places<T>, &mut Intake) -> ProviderResult<R>,
    ) -> ProviderResult<R> {
        self.with_links(|links| {
            // SAFETY: `polling` is held.
            let intake = unsafe { &mut *self.intake.get() };
            f(links, intake.as_mut().ok_or(Error::DeviceRemoved)?)
        })
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
        Some(Polling { polling: &self.polling, _undisturbed: undisturbed })
    }

    /// Runs `f` with the links. Waits for a thread that has them.
    fn with_links<R>(&self, f: impl FnOnce(&mut Places<T>) -> R) -> R {
        let _polling = loop {
            match self.begin() {
                Some(polling) => break polling,
                None => process::yield_now(),
            }
        };
        // SAFETY: `polling` is held.
        f(unsafe { &mut *self.links.get() })
    }

    /// Runs `f` while no thread takes completions.
    pub(in crate::fabric) fn while_nobody_polls<R>(&self, f: impl FnOnce() -> R) -> R {
        self.with_links(|_| f())
    }

    /// A number for a queue pair to carry; until it is [freed](Self::free).
    ///
    /// # Errors
    /// Without memory for what arrives, or goes out.
    pub(in crate::fabric) fn reserve(&self) -> ProviderResult<u64> {
        self.prepare()?;
        Ok(self.with_links(Places::reserve))
    }

    /// The queue pair of that number is gone.
    pub(in crate::fabric) fn free(&self, number: u64) {
        self.with_links(|links| links.free(number));
    }

    /// Completions of a number reach this link from now on.
    pub(in crate::fabric) fn add_link(&self, number: u64, link: &Arc<T>) {
        self.with_links(|links| links.put(number, link));
    }

    /// They reach it no more.
    pub(in crate::fabric) fn remove_link(&self, number: u64) -> Option<Arc<T>> {
        self.with_links(|links| links.take(number))
    }

    /// True if that is so of any link.
    pub(in crate::fabric) fn any_link(&self, is_one: impl Fn(&T) -> bool) -> bool {
        self.with_links(|links| links.links().any(|link| is_one(link)))
    }

    /// Every link, once.
    pub(in crate::fabric) fn each_link(&self, mut each: impl FnMut(&Arc<T>)) {
        let all: Vec<_> = self.with_links(|links| links.links().cloned().collect());
        all.iter().for_each(&mut each);
    }

    /// Takes what had completed when this began, and tells each link of which queue pair, unless another thread does so
    /// (false). A peer that sends without end does not keep the caller: the next look takes what comes meanwhile.
    #[inline]
    pub(in crate::fabric) fn take(&self, mut tell: impl FnMut(&T, u64, PairEvent<'_>)) -> bool {
        let Some(_polling) = self.begin() else { return false };
        let mut batch = [Completion::default(); BATCH];
        for _ in 0..self.device.most_completed().div_ceil(BATCH) {
            // SAFETY: `polling` is held.
            let Some(intake) = (unsafe { &*self.intake.get() }) else { break };
            let count = intake.queue.get_results(&mut batch).unwrap_or(0);
            for completion in &batch[..count] {
                // SAFETY: `polling` is held.
                let links = unsafe { &*self.links.get() };
                let link = links.get(completion.queue_pair);
                intake.sort(completion, |event| {
                    if let Some(link) = link {
                        tell(link, completion.queue_pair, event);
                    }
                });
            }
            if count < BATCH {
                break;
            }
        }
        true
    }
}

impl Intake {
    /// Says what a completion is. The buffer of what arrived is posted again when it was told.
    fn sort(&self, completion: &Completion, tell: impl FnOnce(PairEvent<'_>)) {
        let result = completion.result();
        let Some(index) = Receives::index_of(completion.request) else {
            return tell(match result {
                Ok(_) => PairEvent::Sent(completion.request),
                Err(why) => PairEvent::Failed(why),
            });
        };
        let Some(buffer) = self.receives.buffer(index) else { return };
        tell(match result {
            Ok(length) if completion.kind() == RequestKind::Told => PairEvent::Written(length),
            Ok(length) => {
                let length = (length as usize).min(frame::LARGEST);
                // SAFETY: the buffer is ours until it is posted again.
                PairEvent::Arrived(unsafe { std::slice::from_raw_parts(buffer.at, length) })
            }
            Err(why) => PairEvent::Failed(why),
        });
        if let Err(why) = self.receives.post(index) {
            log::error!("a receive buffer is lost: {why}");
        }
    }
}
