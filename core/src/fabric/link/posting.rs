//! Posts sends to a link's queue pair, and takes back the buffers of sends that are over.

use super::sender::{Full, LinkSender, DEPTH};
use super::state::Link;
use crate::fabric::frame::{self, FrameKind, FrameState, HEADER};
use crate::provider::interface::{Flags, Limits};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// One of so many inline sends tells of its completion.
const SILENT: u32 = 8;

impl Link {
    /// The number of the next request; there is room for it.
    pub(super) fn begin(&self, out: &mut LinkSender) -> Result<u64, Full> {
        let number = self.posted.load(Relaxed);
        if number - out.reclaimed >= u64::from(DEPTH) {
            self.reclaim(out);
        }
        if self.wire().is_none()
            || self.failed.load(Relaxed)
            || number - out.reclaimed >= u64::from(DEPTH)
            || !self.port().device.announce_send()
        {
            return Err(Full);
        }
        Ok(number)
    }

    /// `Full` while the device cannot bind yet, because it binds alone and something is outstanding ([`Limits::BIND_ALONE`]).
    pub(super) fn await_turn_to_bind(&self, out: &mut LinkSender) -> Result<(), Full> {
        let binds_alone = self.port().device.limits.flags & Limits::BIND_ALONE != 0;
        if !binds_alone || self.completed.load(Acquire) == self.posted.load(Relaxed) {
            return Ok(());
        }
        if out.silent > 0 {
            // The end of this frame tells of all before it.
            out.certain = true;
            self.send(out, FrameKind::State, &[])?;
        }
        Err(Full)
    }

    /// True if the next request is to tell of its end, and so of all before it.
    pub(super) fn is_to_tell(&self, out: &LinkSender) -> bool {
        out.silent + 1 >= SILENT || self.port().device.is_short()
    }

    /// The request was posted. `tells`: of its end.
    pub(super) fn begun(&self, out: &mut LinkSender, number: u64, tells: bool) {
        out.silent = if tells { 0 } else { out.silent + 1 };
        self.posted.store(number + 1, Relaxed);
    }

    /// Sends one frame.
    pub(super) fn send(
        &self,
        out: &mut LinkSender,
        kind: FrameKind,
        parts: &[&[u8]],
    ) -> Result<(), Full> {
        self.send_with(out, kind, parts, Flags::NONE)
    }

    /// Sends one frame once all that is being read by RDMA has been read.
    pub(super) fn send_behind_reads(
        &self,
        out: &mut LinkSender,
        kind: FrameKind,
        parts: &[&[u8]],
    ) -> Result<(), Full> {
        self.send_with(out, kind, parts, Flags::READ_FENCE)
    }

    fn send_with(
        &self,
        out: &mut LinkSender,
        kind: FrameKind,
        parts: &[&[u8]],
        flags: Flags,
    ) -> Result<(), Full> {
        let number = self.begin(out)?;
        let certain = self.closing.load(Relaxed) || out.certain;
        let state = self.snapshot(out);
        let payload: usize = parts.iter().map(|part| part.len()).sum();
        let header = frame::encode(kind, payload, &state);
        let length = HEADER + payload;
        let mut small = [0u8; 256];
        let inline = length <= self.port().device.inline().min(small.len());
        let adapter = || self.port().device.objects().map(|device| device.adapter);
        let held = if inline { None } else { self.port().device.pool.take(adapter) };
        if !inline && held.is_none() {
            self.port().device.sent(1);
            return Err(Full);
        }
        let mut to = held.map_or(small.as_mut_ptr(), |buffer| buffer.at);
        for part in std::iter::once(&header[..]).chain(parts.iter().copied()) {
            // SAFETY: header and payload fit into either: a payload is at most CHUNK bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        let is_data = matches!(
            kind,
            FrameKind::Message | FrameKind::Bytes | FrameKind::Written | FrameKind::State
        );
        let tells = held.is_some() || certain || !is_data || self.is_to_tell(out);
        let wire = self.wire().ok_or(Full)?;
        let posted = match held {
            Some(buffer) => wire.pair.send(number, &[buffer.segment(length)], flags),
            None if tells => wire.pair.send_inline(number, &small[..length], flags),
            None => wire.pair.send_inline(number, &small[..length], flags | Flags::SILENT),
        };
        if let Err(why) = posted {
            self.port().device.sent(1);
            if let Some(buffer) = held {
                self.port().device.pool.give_back(buffer);
            }
            // Some providers say at once what others say of the request.
            if !self.ends_on_its_way() {
                self.fail(why);
            }
            return Err(Full);
        }
        if let Some(buffer) = held {
            out.held.push_back((number, buffer));
        }
        self.begun(out, number, tells);
        out.told = state;
        self.told_head.store(state.head, Relaxed);
        self.told_total.store(state.total, Relaxed);
        self.told_finished.store(state.finished, SeqCst);
        Ok(())
    }

    /// What every frame tells: all but the end, which must not overtake data.
    fn snapshot(&self, out: &LinkSender) -> FrameState {
        let Some(body) = self.body.get() else { return FrameState::default() };
        let own = body.segment.side(body.role);
        FrameState {
            head: own.receiving.0.head.load(Acquire),
            total: own.receiving.0.total.load(Acquire),
            finished: out.told.finished,
            stalled: own.sending.0.stalled.load(Acquire),
        }
    }

    /// Gives back what completed sends held.
    pub(super) fn reclaim(&self, out: &mut LinkSender) {
        let completed = self.completed.load(Acquire);
        while let Some((number, buffer)) = out.held.front().copied() {
            if number >= completed || !self.port().device.pool.give_back(buffer) {
                break;
            }
            out.held.pop_front();
        }
        self.port().device.sent(completed - out.reclaimed);
        out.reclaimed = completed;
    }

    /// Gives everything back that unfinished sends held; nothing completes any more.
    pub(super) fn release(&self, out: &mut LinkSender) {
        for (_, buffer) in out.held.drain(..) {
            self.port().device.pool.give_back(buffer);
        }
        self.port().device.sent(self.posted.load(Relaxed) - out.reclaimed);
        out.reclaimed = self.posted.load(Relaxed);
    }
}
