//! Sending much data by RDMA: a blocking send lends its memory, or writes into a posted receive,
//! and waits until the receiver has what it wants of it (S3–S5, A3–A12). A receiver that does not
//! post a receive in time gets messages after all (A4), so nobody waits for long.

use super::bell;
use super::buffers::Buffers;
use super::detach;
use super::endpoint::flag;
use super::policy;
use super::socket::Socket;
use super::spin::spin;
use super::stream::{Broken, Moved, Stream};
use super::wait::{self, Event};
use crate::provider::shm::Registration;
use crate::session::transfer::{Abilities, End, Plan, Progress, Way};
use crate::session::{Available, Control, Mode, LARGEST_TRANSFER};
use crate::sys::user::Access;
use crate::sys::{blocking, poll, time, Errno};
use std::sync::atomic::Ordering::Relaxed;

/// How often a sender that waits scans its connection (A4), in nanoseconds.
const SCAN: u64 = 1_000_000;

/// Memory lent to the receiver for RDMA read; dropped, it is the program's alone again.
struct Lent<'a> {
    registration: &'a Registration,
}

impl Lent<'_> {
    fn take_back(self) -> u32 {
        // It is only read from: a reader never keeps it busy.
        self.registration.deregister().unwrap_or(0)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let _ = self.registration.deregister();
    }
}

/// One send of much data. The send lock is held all the time: what is sent stays in one piece.
struct Transfer<'a, 'b> {
    socket: &'a Socket,
    stream: &'a Stream<'a>,
    from: &'a mut Buffers<'b>,
    abilities: Abilities,
    moved: Moved,
    /// A signal ended a wait.
    interrupted: bool,
}

/// Why a wait ended.
enum Woken {
    Progress(Progress),
    /// Two scans found no progress (A4).
    Scanned,
    /// A signal, or the connection ended.
    Interrupted,
}

/// Sends by RDMA as much as is possible and worth it; what remains in `from` goes in messages.
/// Send lock. `waits`: the send may block.
pub(super) fn send(
    socket: &Socket,
    stream: &Stream,
    from: &mut Buffers,
    waits: bool,
) -> Result<Moved, Broken> {
    let sending = &stream.endpoint.send;
    let abilities = stream.endpoint.abilities();
    let measures = policy::measures();
    let started = time::now();
    let length = from.remaining();
    let mut transfer =
        Transfer { socket, stream, from, abilities, moved: Moved::default(), interrupted: false };
    let way = if measures && waits { sending.preference.way() } else { Way::Rdma };
    if way == Way::Rdma {
        if let Some(mode) = sending.transfers.learn() {
            transfer.announce_mode(mode);
        }
        transfer.run(waits)?;
    }
    let Transfer { mut moved, interrupted, .. } = transfer;
    if moved.fault.is_none() && from.remaining() > 0 {
        let rest = stream.send(from)?;
        moved.bytes += rest.bytes;
        moved.ring |= rest.ring;
        moved.fault = rest.fault;
        if interrupted && moved.fault.is_none() && from.remaining() > 0 {
            // The signal must not be lost in a wait for room.
            moved.fault = Some(Errno(libc::EINTR));
        }
    }
    // A send that has to wait for room is still under way: its cost would be too small.
    if measures && waits && from.remaining() == 0 && moved.bytes == length {
        let took = time::now() - started;
        let changed = sending.preference.record(way, length as u64, took);
        if changed && sending.preference.settled_on_messages() {
            sending.transfers.observer().settle_on_messages();
            stream.endpoint.due.note(&Control::EnterMode(Mode::SmallReceive, true));
        } else if changed && sending.transfers.observer().rediscover() {
            stream.endpoint.due.note(&Control::EnterMode(Mode::Discovery, false));
        }
    }
    Ok(moved)
}

impl Transfer<'_, '_> {
    fn run(&mut self, waits: bool) -> Result<(), Broken> {
        let transfers = &self.stream.endpoint.send.transfers;
        while self.from.remaining() > 0 && self.moved.fault.is_none() {
            // Order: what lies in the send buffer comes before what is announced.
            if !self.stream.may_announce()? {
                return Ok(());
            }
            let position = self.stream.endpoint.send.total.load(Relaxed);
            let length = self.from.remaining() as u64;
            let go_on = match transfers.plan(length, position, waits, self.abilities) {
                Plan::Messages => false,
                Plan::Write(advertisement) => {
                    let room = advertisement.length;
                    if self.write(advertisement.key, room, room).is_some() {
                        self.end(End::Written { directly: advertisement.directly });
                    }
                    true
                }
                Plan::Announce { readable, first_part } => self.announce(readable, first_part)?,
                Plan::Await => self.wait_for_advertisement()?,
            };
            if !go_on {
                return Ok(());
            }
        }
        Ok(())
    }

    fn end(&mut self, how: End) {
        if let Some(mode) = self.stream.endpoint.send.transfers.end(how) {
            self.announce_mode(mode);
        }
    }

    fn announce_mode(&mut self, mode: Mode) {
        self.stream.endpoint.due.note(&Control::EnterMode(mode, false));
    }

    /// Writes at most `most` bytes into an advertised buffer of `room`; how many it was. `None`: the
    /// buffer was withdrawn.
    fn write(&mut self, key: u32, room: u32, most: u32) -> Option<u32> {
        match self.stream.write_to(key, room, most, self.from) {
            Ok(Some(moved)) => {
                self.from.skip(moved.bytes);
                self.moved.bytes += moved.bytes;
                if moved.ring {
                    bell::ring(self.socket);
                }
                Some(moved.bytes as u32)
            }
            Ok(None) => None,
            Err(e) => {
                self.moved.fault = Some(e);
                None
            }
        }
    }

    /// Announces the next piece of the data and waits for what becomes of it; false: the rest goes in
    /// messages.
    fn announce(&mut self, readable: bool, first_part: bool) -> Result<bool, Broken> {
        let stream = self.stream;
        let first = if first_part { stream.first_part().min(self.from.remaining() - 1) } else { 0 };
        let mut after = self.from.clone();
        after.skip(first);
        let (at, rest) = match after.piece(LARGEST_TRANSFER as usize, Access::Read) {
            Ok((at, rest)) => (at as u64, rest as u32),
            Err(_) => return Ok(false),
        };
        let transfers = &stream.endpoint.send.transfers;
        let key = transfers.begin(rest);
        let registration = &stream.own().readable.0;
        if readable {
            registration.register(key, at, rest);
        }
        let lent = Lent { registration };
        let address = readable.then_some(at);
        let sent = stream.announce(Available { key, rest, address }, first, self.from);
        let Ok(moved) = sent else {
            // No credit, or the program's memory is bad: the ordinary way finds out which.
            drop(lent);
            self.end(End::Abandoned);
            return Ok(false);
        };
        self.moved.bytes += moved.bytes;
        if moved.ring {
            bell::ring(self.socket);
        }
        self.follow(lent, key, rest, readable)
    }

    /// Waits until the announced `rest` was read, or writes it where the receiver wants it.
    fn follow(&mut self, lent: Lent, key: u32, rest: u32, readable: bool) -> Result<bool, Broken> {
        let mut written = 0;
        loop {
            let (end, go_on) = match self.wait(lent.registration, readable, rest)? {
                Woken::Progress(Progress::Complete(_)) => (End::Read, true),
                Woken::Progress(Progress::Advertised(a)) if !readable => {
                    let room = a.length.min(rest - written);
                    match self.write(a.key, a.length, room) {
                        Some(n) => written += n,
                        None if self.moved.fault.is_some() => return Ok(false),
                        None => continue,
                    }
                    if written < rest {
                        // More receives will be posted for the rest of it (A6).
                        self.stream.endpoint.send.transfers.await_more();
                        continue;
                    }
                    self.end(End::Written { directly: a.directly });
                    return Ok(true);
                }
                // The advertisement wins over the descriptor that was sent (A12), which no receiver
                // uses that advertised.
                Woken::Progress(Progress::Advertised(a)) => {
                    let taken = lent.take_back();
                    self.count_taken(taken);
                    if taken == 0 && self.write(a.key, a.length, a.length).is_some() {
                        self.end(End::Written { directly: a.directly });
                    } else {
                        self.end(End::Abandoned);
                    }
                    return Ok(self.moved.fault.is_none());
                }
                Woken::Progress(Progress::InMessages) => (End::Refused, false),
                Woken::Progress(Progress::Waiting) => continue,
                Woken::Scanned => (End::Scanned, false),
                Woken::Interrupted => (End::Abandoned, false),
            };
            let taken = if readable { lent.take_back() } else { written };
            if readable {
                self.count_taken(taken);
            }
            if taken < rest {
                self.stream.endpoint.due.note(&Control::RestInMessages(key, taken));
            }
            // All of it may have been read while the decision fell.
            let all = taken == rest;
            self.end(if all && readable { End::Read } else { end });
            return Ok(all || go_on);
        }
    }

    /// The receiver read so many bytes from where the program has them.
    fn count_taken(&mut self, taken: u32) {
        self.from.skip(taken as usize);
        self.stream.sent_by_rdma(taken as usize);
        self.moved.bytes += taken as usize;
    }

    /// Large-receive mode without RDMA read: the receiver acts, and is waited for (A11).
    fn wait_for_advertisement(&mut self) -> Result<bool, Broken> {
        let transfers = &self.stream.endpoint.send.transfers;
        transfers.await_advertisement();
        match self.wait(&self.stream.own().readable.0, false, 0)? {
            Woken::Progress(Progress::Advertised(a)) => {
                if self.write(a.key, a.length, a.length).is_some() {
                    self.end(End::Written { directly: a.directly });
                }
                Ok(self.moved.fault.is_none())
            }
            Woken::Scanned => {
                self.end(End::Scanned);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// What the receiver did about the transfer by now.
    fn look(&self, lent: &Registration, readable: bool, rest: u32) -> Result<Progress, Broken> {
        self.stream.absorb_if_free()?;
        if readable && lent.done() == rest {
            return Ok(Progress::Complete(rest));
        }
        let position = self.stream.endpoint.send.total.load(Relaxed);
        Ok(self.stream.endpoint.send.transfers.progress(position, self.abilities))
    }

    fn wait(&mut self, lent: &Registration, readable: bool, rest: u32) -> Result<Woken, Broken> {
        let (socket, stream) = (self.socket, self.stream);
        let transfers = &stream.endpoint.send.transfers;
        let mut looked = Ok(Progress::Waiting);
        let mut scanned = time::now();
        loop {
            if stream.send_due_now() {
                bell::ring(socket);
            }
            let mut ready = || {
                looked = self.look(lent, readable, rest);
                !matches!(looked, Ok(Progress::Waiting))
            };
            let left = SCAN.saturating_sub(time::now() - scanned);
            let mut interrupted = self.interrupted;
            if !spin(&socket.spin, left, &mut ready) {
                bell::drain(socket, stream, &mut ready);
                let armed = wait::arm(stream, Event::Write);
                if !ready() {
                    interrupted = sleep(socket, left.max(1)).is_err();
                }
                wait::disarm(stream, armed);
                ready();
            }
            match std::mem::replace(&mut looked, Ok(Progress::Waiting))? {
                Progress::Waiting => {}
                progress => return Ok(Woken::Progress(progress)),
            }
            self.interrupted = interrupted;
            let returns =
                detach::is_due(stream) || stream.own().sending.0.doorbells.state().recalled;
            if interrupted || returns || wait::ended(stream) || stream.endpoint.has(flag::SEND_SHUT)
            {
                return Ok(Woken::Interrupted);
            }
            if time::now() - scanned >= SCAN {
                scanned = time::now();
                if transfers.scan(if readable { lent.done() } else { 0 }) {
                    return Ok(Woken::Scanned);
                }
            }
        }
    }
}

/// Sleeps on the anchor, at most `limit` nanoseconds.
fn sleep(socket: &Socket, limit: u64) -> Result<(), Errno> {
    let mut fds = [libc::pollfd { fd: socket.anchor(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: no signal mask.
    let n = unsafe { blocking::poll(&mut fds, Some(limit), std::ptr::null()) }?;
    if n > 0 && fds[0].revents & (libc::POLLHUP | libc::POLLERR) != 0 {
        poll::poll_one(socket.anchor(), 0)?;
        return Err(Errno(libc::EINTR));
    }
    Ok(())
}
