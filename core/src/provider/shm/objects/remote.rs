//! RDMA of a queue pair: what this end binds for its peer, and access to what the peer bound (M2, M3).
//!
//! A request runs when it is begun, in the turn of whichever thread: the kernel copies between the processes while the
//! peer does nothing. So a request has ended before the next one begins, and the receiver of a message that is sent
//! after a write finds the written bytes.

use super::channel::LocalChannel;
use super::pair::LocalPair;
use super::window::{self, Window};
use super::work_queue::{List, RequestedWork, Stage};
use crate::provider::interface::{Error, ProviderResult, RemoteAccess, RemoteMemory};
use crate::provider::shm::Refusal;
use crate::sys::{process, time};
use std::ops::Range;
use std::sync::atomic::{fence, Ordering};

/// A refusal in the interface's words.
fn in_words(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Gone => Error::ConnectionReset,
        Refusal::Forbidden => {
            log::warn!(
                "shm: the kernel forbids access to the peer's memory (ptrace_scope, seccomp)"
            );
            Error::RemoteAccess
        }
        Refusal::NotRegistered | Refusal::Stranger | Refusal::Fault => Error::RemoteAccess,
    }
}

impl LocalPair {
    /// A free window for part of a region; its token. The region is not deregistered until it is released.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if the region does not have it, [`Error::InsufficientResources`] if all
    /// windows are bound.
    pub(super) fn reserve_window(&self, region: u32, range: &Range<u64>) -> ProviderResult<u32> {
        self.memory.bind(region, range)?;
        for (place, bound) in self.bound.iter().enumerate() {
            if bound.load(Ordering::Relaxed) != 0 {
                continue;
            }
            let token = self.new_token(place);
            let word = u64::from(token) << 32 | u64::from(region);
            if bound.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return Ok(token);
            }
        }
        self.memory.unbind(region);
        Err(Error::InsufficientResources)
    }

    /// A token that this window did not have for long, and not zero.
    fn new_token(&self, place: usize) -> u32 {
        loop {
            let serial = self.serial.fetch_add(1, Ordering::Relaxed);
            let token = serial.wrapping_mul(window::WINDOWS as u32) + place as u32;
            if token >= window::WINDOWS as u32 {
                return token;
            }
        }
    }

    /// Nothing was bound after all.
    pub(super) fn release_window(&self, token: u32) {
        let bound = &self.bound[window::place(token)];
        let word = bound.load(Ordering::Relaxed);
        let is_its = (word >> 32) as u32 == token;
        if is_its && bound.compare_exchange(word, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            self.memory.unbind(word as u32);
        }
    }

    /// It is about to be invalidated; false if it is not bound, or that is so already.
    pub(super) fn abandon_window(&self, token: u32) -> bool {
        let bound = &self.bound[window::place(token)];
        let word = bound.load(Ordering::Relaxed);
        let region = word & u64::from(u32::MAX);
        (word >> 32) as u32 == token
            && token != 0
            && bound.compare_exchange(word, region, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes back at once what the peer can reach by this token.
    ///
    /// # Errors
    /// [`Error::InsufficientResources`] while the peer is writing. [`Error::InvalidParameter`] if nothing is bound, or
    /// not yet.
    pub(super) fn close_window(&self, token: u32) -> ProviderResult<()> {
        let place = window::place(token);
        let channel = self.channel.get().ok_or(Error::NotConnected)?;
        let window = &channel.own().windows[place];
        let word = self.bound[place].load(Ordering::SeqCst);
        if token == 0 || (word >> 32) as u32 != token || !window.is_of(token) {
            return Err(Error::InvalidParameter);
        }
        if !window.close(channel.is_over()) {
            return Err(Error::InsufficientResources);
        }
        self.free_window(place);
        Ok(())
    }

    /// The window is closed: its region may be deregistered, and the next one may have its place.
    fn free_window(&self, place: usize) {
        let word = self.bound[place].swap(0, Ordering::SeqCst);
        if word != 0 {
            self.memory.unbind(word as u32);
        }
    }

    /// Takes everything back that the peer can reach (M2). True if nothing is left. The thread that ends the queue pair
    /// calls this, in a turn or not. It waits for a write that is under way, `patience` ns in all. If the write lasts
    /// longer, its region stays bound, so that it is not deregistered. A thread that looks later finds the end of the
    /// write, or that of the writer.
    pub(super) fn close_windows(&self, patience: u64) -> bool {
        let mut deadline = None;
        loop {
            let mut all_closed = true;
            for (place, bound) in self.bound.iter().enumerate() {
                if bound.load(Ordering::SeqCst) == 0 {
                    continue;
                }
                match self.channel.get() {
                    Some(channel) if !channel.own().windows[place].close(channel.is_over()) => {
                        all_closed = false;
                    }
                    _ => self.free_window(place),
                }
            }
            let now = if all_closed { 0 } else { time::now() };
            if all_closed || now >= *deadline.get_or_insert(now + patience) {
                return all_closed;
            }
            self.channel.get().into_iter().for_each(LocalChannel::hear);
            process::yield_now();
        }
    }

    /// Runs a request other than a send; `None`: later.
    pub(super) fn begin_remote(
        &self,
        channel: &LocalChannel,
        work: &RequestedWork,
    ) -> Option<Stage> {
        let result = match work {
            RequestedWork::Read(into, from) => self.read(channel, into, *from),
            RequestedWork::Write(from, to) => self.write(channel, from, *to),
            RequestedWork::Bind(token, start, end, access) => {
                let window = &channel.own().windows[window::place(*token)];
                window.open(*token, &(*start..*end), *access);
                // Ordered against a thread that ends the queue pair, and then closes the windows that it finds. It may
                // have found this one closed. The peer has not heard of the window yet.
                fence(Ordering::SeqCst);
                if self.ending.load(Ordering::SeqCst) {
                    window.close(true);
                    return Some(Stage::Over(Err(Error::Cancelled)));
                }
                Ok(())
            }
            RequestedWork::Invalidate(token) => {
                let place = window::place(*token);
                let closed = channel.own().windows[place].close(channel.is_over());
                // The peer rings when its write has ended, or ends with its process.
                self.seen.stuck.store(!closed, Ordering::SeqCst);
                if !closed {
                    return None;
                }
                self.free_window(place);
                Ok(())
            }
            RequestedWork::Send(_) | RequestedWork::Inline(_) => Err(Error::Internal),
        };
        Some(Stage::Over(result))
    }

    /// The peer's window, if `length` bytes may be accessed there.
    fn window<'a>(
        &self,
        channel: &'a LocalChannel,
        memory: RemoteMemory,
        list: &List,
        access: RemoteAccess,
    ) -> ProviderResult<&'a Window> {
        let length = self.memory.check(list.segments())?;
        let window = &channel.peer().windows[window::place(memory.token)];
        if channel.process() == 0 || channel.is_over() {
            return Err(Error::RemoteAccess);
        }
        // All of it before any byte is moved.
        window.check(memory, length, access).map_err(in_words)?;
        Ok(window)
    }

    fn read(&self, channel: &LocalChannel, into: &List, from: RemoteMemory) -> ProviderResult<()> {
        let window = self.window(channel, from, into, RemoteAccess::Read)?;
        let (process, proof) = (channel.process(), &channel.peer().proof.0);
        let mut from = from;
        self.memory.each(into.segments(), |to, length| {
            // SAFETY: registered, so mapped and ours to write.
            let read = unsafe { window.read(process, proof, from, to, length) };
            from.address = from.address.wrapping_add(length as u64);
            read.map_err(in_words)
        })
    }

    fn write(&self, channel: &LocalChannel, from: &List, to: RemoteMemory) -> ProviderResult<()> {
        let window = self.window(channel, to, from, RemoteAccess::Write)?;
        let (process, proof) = (channel.process(), &channel.peer().proof.0);
        let mut to = to;
        self.memory.each(from.segments(), |at, length| {
            // SAFETY: registered, so mapped.
            let (written, is_awaited) = unsafe { window.write(process, proof, to, at, length) };
            if is_awaited {
                channel.ring();
            }
            to.address = to.address.wrapping_add(length as u64);
            written.map_err(in_words)
        })
    }
}
