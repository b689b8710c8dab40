//! This end reads or writes, by RDMA, memory that the peer's program lent for one transfer: straight from or into the
//! memory of this end's program.
//!
//! The thread that does so waits for the device, so that the program's memory is its own again when its call returns.
//! How much was used goes to the peer behind the access ([`FrameKind::ReadLent`], [`FrameKind::WroteLent`]): the device
//! sends it even if this process is stopped meanwhile. The links of both ends agree on what was used before the owner
//! has its memory back.

use super::body::Body;
use super::lending::DEVICE;
use super::outgoing::Tell;
use super::sender::{Full, LinkSender};
use super::state::Link;
use crate::fabric::frame::FrameKind;
use crate::provider::interface::client::MemoryRegion;
use crate::provider::interface::{Error, Flags, RemoteMemory};
use crate::provider::shm::{MemoryRegistration, Refusal, Right, Usage};
use crate::session::LARGEST_TRANSFER;
use crate::sys::handlers::Undisturbed;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Most bytes of one read. Soft-RoCE sends all of an answer at once, and loses packets of a longer one.
const LARGEST_READ: usize = 1 << 20;
/// The kinds of frames that tell what was used, by the right's place.
const USED: [FrameKind; 2] = [FrameKind::ReadLent, FrameKind::WroteLent];

/// An access that this end has claimed.
struct Access<'a> {
    right: Right,
    key: u32,
    picture: &'a MemoryRegistration,
    /// The program's memory at this end.
    region: &'a MemoryRegion,
    at: *mut u8,
    length: u32,
    /// Where it goes, or comes from, at the peer.
    address: u64,
    /// What is told to the peer, if it is told.
    usage: Option<Usage>,
}

fn encode(usage: Usage) -> [u8; 12] {
    let mut payload = [0; 12];
    payload[..4].copy_from_slice(&usage.key.to_le_bytes());
    payload[4..8].copy_from_slice(&usage.bytes.to_le_bytes());
    let how = u32::from(usage.is_over) | u32::from(usage.is_asked) << 1;
    payload[8..].copy_from_slice(&how.to_le_bytes());
    payload
}

fn words<const COUNT: usize>(payload: &[u8]) -> Option<[u32; COUNT]> {
    let (words, rest) = payload.as_chunks();
    let words: &[[u8; 4]; COUNT] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u32::from_le_bytes))
}

impl Link {
    /// The peer lends memory. False if that makes no sense. As the next ones: called by the thread that takes the port's
    /// completions.
    pub(super) fn note_lent(&self, body: &Body, payload: &[u8]) -> bool {
        let Some([right, key, low, high, length, token]) = words(payload) else { return false };
        let address = u64::from(low) | u64::from(high) << 32;
        let (Some(right), Some(wire)) = (Right::of(right), self.wire()) else { return false };
        if !(1..=LARGEST_TRANSFER).contains(&length) {
            return false;
        }
        wire.direct.lent[right.place()].store(token, Relaxed);
        body.peers_lent(right).register(key, address, length, right);
        true
    }

    /// The peer wants back what it lent. False if that makes no sense.
    pub(super) fn heed_recall(&self, body: &Body, payload: &[u8]) -> bool {
        let Some([right, key]) = words(payload) else { return false };
        let Some(right) = Right::of(right) else { return false };
        if body.peers_lent(right).recall(key) {
            self.note(USED[right.place()]);
        }
        true
    }

    /// The peer used what this end lent. False if that makes no sense.
    pub(super) fn note_usage(&self, body: &Body, right: Right, payload: &[u8]) -> bool {
        let Some([key, bytes, how]) = words(payload) else { return false };
        let usage = Usage { key, bytes, is_over: how & 1 != 0, is_asked: how & 2 != 0 };
        self.lending.is_unanswered.store(false, SeqCst);
        if usage.is_asked {
            self.lending.is_heard.store(true, SeqCst);
        }
        let makes_sense = body.own_lent(right).note_usage(usage);
        // A sender waits for the one, and a receiver for the other.
        self.wake(body, true, true);
        makes_sense
    }

    /// Tells how much of what the peer lent was used, where that is due.
    pub(super) fn send_usage(&self, out: &mut LinkSender) -> Result<(), Full> {
        for right in [Right::Read, Right::Write] {
            let kind = USED[right.place()];
            let bit = 1 << kind as u32;
            if self.due.load(Acquire) & bit == 0 {
                continue;
            }
            // What is used from now on is due again.
            self.due.fetch_and(!bit, SeqCst);
            let Some(body) = self.body.get() else { continue };
            let payload = encode(body.peers_lent(right).usage());
            let sent = self.send(out, kind, &[&payload]);
            sent.inspect_err(|_| {
                self.due.fetch_or(bit, SeqCst);
            })?;
        }
        Ok(())
    }

    /// RDMA read (S4) of what the peer lent as number `key`, of `length` bytes of which `taken` were read before, to
    /// `to`: how many. `commit`: they count as read.
    ///
    /// # Errors
    /// [`Refusal`]. Then nothing counts as read, though bytes at `to` may have changed.
    ///
    /// # Safety
    /// The bytes at `to` may be written.
    pub(crate) unsafe fn read_lent(
        &self,
        (key, length, taken): (u32, u32, u32),
        to: *mut [u8],
        commit: bool,
    ) -> Result<usize, Refusal> {
        let count = to.len().min((length - taken) as usize).min(LARGEST_READ);
        let used = if commit { taken + count as u32 } else { taken };
        let usage = Usage { key, bytes: used, is_over: used == length, is_asked: false };
        let at = to.cast::<u8>();
        self.use_lent(Right::Read, (key, length, taken), (at, count), commit.then_some(usage))
    }

    /// RDMA write (S5) of `length` bytes at `from` into what the peer lent as number `key`, of `room` bytes in all: how
    /// many. It is lent no more afterwards.
    ///
    /// # Errors
    /// [`Refusal`]. Then nothing counts as written.
    ///
    /// # Safety
    /// `length` bytes at `from` may be read.
    pub(crate) unsafe fn write_lent(
        &self,
        key: u32,
        room: u32,
        from: *const u8,
        length: usize,
    ) -> Result<usize, Refusal> {
        let count = length.min(room as usize).min(self.largest_transfer() as usize);
        let usage = Usage { key, bytes: count as u32, is_over: true, is_asked: false };
        self.use_lent(Right::Write, (key, room, 0), (from.cast_mut(), count), Some(usage))
    }

    fn use_lent(
        &self,
        right: Right,
        (key, length, used): (u32, u32, u32),
        (at, count): (*mut u8, usize),
        usage: Option<Usage>,
    ) -> Result<usize, Refusal> {
        let body = self.body.get().filter(|_| self.may_use_memory()).ok_or(Refusal::Gone)?;
        // A handler that leaves by a jump would leave the program's memory to the device.
        let _undisturbed = Undisturbed::begin();
        let region = self.register(at, count).map_err(|why| {
            log::debug!("link {:x}: {count} bytes in messages: {why}", self.id());
            Refusal::Gone
        })?;
        // A request for the memory that is here by now comes first, also one that another thread is about to take in.
        self.port().catch_up();
        let picture = body.peers_lent(right);
        let address = picture.claim(key, used, length, right)?;
        let length = count as u32;
        let access = Access { right, key, picture, region: &region, at, length, address, usage };
        let done = self.access(&access);
        if let Err(why) = region.deregister() {
            log::error!("link {:x}: a program's memory stays registered: {why}", self.id());
        }
        self.push(Tell::Due);
        done.map(|()| count)
    }

    /// Reads, and writes, of the peer's memory that this end has done, and their bytes.
    pub(in crate::fabric) fn accesses_done(&self) -> [(u64, u64); 2] {
        [0, 1].map(|place| {
            let (accesses, bytes) = &self.lending.done[place];
            (accesses.load(Relaxed), bytes.load(Relaxed))
        })
    }

    /// Says how much went between the programs' memory.
    pub(super) fn log_accesses(&self) {
        let [(reads, read), (writes, written)] = self.accesses_done();
        if reads + writes > 0 {
            log::info!(
                "link {:x}: from program to program by RDMA: {reads} reads of {read} bytes, {writes} writes of {written} bytes",
                self.id()
            );
        }
    }

    /// Does what was claimed, and waits for its end.
    fn access(&self, access: &Access) -> Result<(), Refusal> {
        let posted = self.as_sender(|out| self.post_access(out, access));
        let Ok((number, is_told)) = posted else {
            self.unclaim(access, false, true);
            return Err(Refusal::Gone);
        };
        let is_over = || self.completed.load(Acquire) > number || self.has_failed();
        let is_done = self.wait_until(DEVICE, is_over) && !self.has_failed();
        if !is_done {
            // The device touches nothing for a queue pair that has ended.
            self.break_off();
        }
        self.unclaim(access, is_done, is_told);
        if is_done {
            let (accesses, bytes) = &self.lending.done[access.right.place()];
            accesses.fetch_add(1, Relaxed);
            bytes.fetch_add(access.length.into(), Relaxed);
        }
        self.as_sender(|_| self.lending.accesses.fetch_sub(1, SeqCst));
        is_done.then_some(()).ok_or(Refusal::Gone)
    }

    /// The claim ends. `is_done`: it did what it was for. `is_told`: the peer hears of it, or need not.
    fn unclaim(&self, access: &Access, is_done: bool, is_told: bool) {
        let used = access.usage.filter(|_| is_done);
        let bytes = used.map_or(0, |_| access.length);
        let is_last = used.is_some_and(|usage| usage.is_over);
        let is_asked = access.picture.unclaim(access.key, bytes, is_last);
        if is_asked || !is_told {
            self.due.fetch_or(1 << USED[access.right.place()] as u32, SeqCst);
        }
    }

    /// Posts the access, and what is told of it: the number of its request, and whether that was told.
    fn post_access(&self, out: &mut LinkSender, access: &Access) -> Result<(u64, bool), Full> {
        self.reclaim(out);
        let wire = self.wire().filter(|_| self.may_use_memory()).ok_or(Full)?;
        let segment = access.region.segment(access.at, access.length).map_err(|_| Full)?;
        let token = wire.direct.lent[access.right.place()].load(Relaxed);
        let remote = RemoteMemory { address: access.address, token };
        let number = self.begin(out)?;
        let posted = match access.right {
            Right::Read => wire.pair.read(number, &[segment], remote, Flags::NONE),
            Right::Write => wire.pair.write(number, &[segment], remote, Flags::NONE),
        };
        if let Err(why) = posted {
            self.port().device.sent(1);
            if !matches!(why, Error::InsufficientResources) {
                self.fail(why);
            }
            return Err(Full);
        }
        self.begun(out, number, true);
        self.lending.accesses.fetch_add(1, SeqCst);
        let is_told = access.usage.is_none_or(|usage| {
            let kind = USED[access.right.place()];
            // Not before all of it was read.
            self.send_behind_reads(out, kind, &[&encode(usage)]).is_ok()
        });
        Ok((number, is_told))
    }
}
