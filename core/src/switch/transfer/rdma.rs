//! Sends much data by RDMA. A blocking send lends its memory, or writes into a posted receive, and waits until the
//! receiver has what it wants of the data (S3–S5, A3–A12). A receiver that does not post a receive in time gets
//! messages after all (A4), so no sender waits for long.

use crate::provider::shm::Right;
use crate::session::transfer::{Abilities, End, Plan, Progress, Way};
use crate::session::{Available, Control, Mode};
use crate::switch::anchor::returning;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::{flag, SendHalf};
use crate::switch::policy;
use crate::switch::socket::Socket;
use crate::switch::stream::{Broken, Moved, Stream};
use crate::switch::transfer::announced::LentData;
use crate::switch::waiting::ring;
use crate::switch::waiting::wait::{self, Limit, Wait};
use crate::sys::user::Access;
use crate::sys::{time, Errno};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// How often (ns) a sender that waits scans its connection (A4).
const SCAN: u64 = 1_000_000;
/// The same between hosts, where the receiver's answer takes longer.
const SCAN_ELSEWHERE: u64 = 10_000_000;

/// The holder of the send lock waits for the peer until this value is dropped.
struct Awaits<'a>(&'a AtomicU32);

impl<'a> Awaits<'a> {
    fn peer(send: &'a SendHalf) -> Awaits<'a> {
        send.awaits_peer.store(1, SeqCst);
        // A thread that waits for the lock may not want to wait any more.
        send.lock.nudge();
        Awaits(&send.awaits_peer)
    }
}

impl Drop for Awaits<'_> {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
}

/// One send of much data. Its thread holds the send lock all the time, so that the data stays in one piece.
struct Transfer<'a, 'b> {
    socket: &'a Socket,
    stream: &'a Stream<'a>,
    from: &'a mut Buffers<'b>,
    abilities: Abilities,
    moved: Moved,
    limit: &'a Limit,
    /// The error of a wait that a signal, or the time-out, ended.
    stopped: Option<Errno>,
    /// This is set from the first wait to the end of the send. Between two waits no other thread has time to send, so
    /// telling another thread that it may send would be in vain.
    awaits: Option<Awaits<'a>>,
}

/// Why a wait ended.
enum Woken {
    Progress(Progress),
    /// Two scans found no progress (A4).
    Scanned,
    /// A signal, or the connection ended.
    Interrupted,
}

/// Sends by RDMA as much as is possible and worth it, and the rest of `from` in messages. The caller has the send lock.
/// `limit`: the send may block, no longer than this. `began`: when the call began, in ticks.
pub(in crate::switch) fn send(
    socket: &Socket,
    stream: &Stream,
    from: &mut Buffers,
    limit: Option<&Limit>,
    began: u64,
) -> Result<Moved, Broken> {
    let sending = &stream.endpoint.send;
    let abilities = stream.abilities();
    // A signal handler threw a thread out of such a wait. In messages the thread gets on, however often it is thrown
    // out.
    let thrown_out = sending.waits.load(Relaxed) != 0;
    sending.waits.store(0, Relaxed);
    // An RDMA transfer may make the kernel wait in the peer's memory, so only a send that may block uses RDMA.
    let Some(limit) = limit.filter(|_| !thrown_out) else { return stream.send(from) };
    let measures = policy::measures();
    let before = sending.transfers.bytes();
    let way = if measures { sending.preference.way() } else { Way::Rdma };
    let (mut moved, stopped) = if way == Way::Rdma {
        Transfer {
            socket,
            stream,
            from,
            abilities,
            moved: Moved::default(),
            limit,
            stopped: None,
            awaits: None,
        }
        .run()?
    } else {
        (Moved::default(), None)
    };
    if moved.fault.is_none() && from.remaining() > 0 {
        let rest = stream.send(from)?;
        moved.bytes += rest.bytes;
        moved.ring |= rest.ring;
        moved.fault = rest.fault;
        if moved.fault.is_none() && from.remaining() > 0 {
            // The signal or the time-out must not be lost in a wait for room.
            moved.fault = stopped;
        }
    }
    if before == 0 && sending.transfers.bytes() > 0 {
        log::info!("fd {}: the first data by RDMA", socket.anchor());
    }
    if measures && sending.preference.record(way, moved.bytes as u64, began, time::ticks()) {
        prefer(socket, stream);
    }
    stream.publish_transfers();
    Ok(moved)
}

/// Tells the receiver what to post: the measured way of sending much data changed.
fn prefer(socket: &Socket, stream: &Stream) {
    let preference = &stream.endpoint.send.preference;
    let way = preference.way();
    log::debug!("fd {}: much data goes by {way:?} now: {preference}", socket.anchor());
    let observer = stream.endpoint.send.transfers.observer();
    if way == Way::Messages {
        observer.settle_on_messages();
        stream.endpoint.due.note(&Control::EnterMode(Mode::SmallReceive, true));
    } else if observer.rediscover() {
        stream.endpoint.due.note(&Control::EnterMode(Mode::Discovery, false));
    }
}

impl Transfer<'_, '_> {
    /// Gives the bytes that were moved, and the error of a wait that a signal, or the time-out, ended.
    fn run(mut self) -> Result<(Moved, Option<Errno>), Broken> {
        let transfers = &self.stream.endpoint.send.transfers;
        if let Some(mode) = transfers.learn() {
            self.announce_mode(mode);
        }
        while self.from.remaining() > 0 && self.moved.fault.is_none() {
            if self.stream.send_due_now() {
                ring::ring(self.socket);
            }
            // The bytes in the send buffer come before the announced bytes.
            if !self.stream.prepare_to_announce()? {
                break;
            }
            let position = self.stream.endpoint.send.total();
            let length = self.from.remaining() as u64;
            let go_on = match transfers.plan(length, position, true, self.abilities) {
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
                break;
            }
        }
        Ok((self.moved, self.stopped))
    }

    fn end(&mut self, how: End) {
        if let Some(mode) = self.stream.endpoint.send.transfers.end(how) {
            self.announce_mode(mode);
        }
    }

    fn announce_mode(&mut self, mode: Mode) {
        self.stream.endpoint.due.note(&Control::EnterMode(mode, false));
    }

    /// Writes at most `most` bytes into an advertised buffer of `room` bytes. Gives the number of bytes written.
    /// `None`: the receiver withdrew the buffer, or the write failed.
    fn write(&mut self, key: u32, room: u32, most: u32) -> Option<u32> {
        match self.stream.write_to(key, room, most, self.from) {
            Ok(Some(moved)) => {
                self.from.skip(moved.bytes);
                self.moved.bytes += moved.bytes;
                if moved.ring {
                    ring::ring(self.socket);
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

    /// Announces the next piece of the data, and waits until the receiver acts on it. False: the rest goes in messages.
    fn announce(&mut self, readable: bool, first_part: bool) -> Result<bool, Broken> {
        let stream = self.stream;
        let first = if first_part { stream.first_part().min(self.from.remaining() - 1) } else { 0 };
        let mut after = self.from.clone();
        after.skip(first);
        let (at, rest) = match after.piece(stream.largest_transfer(), Access::Read) {
            // Many small pieces are not worth a round trip each.
            Ok((at, rest)) if rest >= self.abilities.threshold as usize / 2 => {
                (at as u64, rest as u32)
            }
            _ => return Ok(false),
        };
        let key = stream.endpoint.send.transfers.begin(rest);
        if readable && !stream.lend(Right::Read, key, at, rest) {
            // This memory goes in messages (S6).
            stream.endpoint.send.transfers.forget();
            return Ok(false);
        }
        let mut lent = LentData { stream, key, rest, taken: 0, readable, announced: false };
        let address = readable.then_some(at);
        let sent = stream.announce(Available { key, rest, address }, first, self.from);
        let Ok(moved) = sent else {
            // There is no credit, or the program's memory is bad. A send in messages finds out which.
            return Ok(false);
        };
        lent.announced = true;
        self.moved.bytes += moved.bytes;
        if moved.ring {
            ring::ring(self.socket);
        }
        self.follow(lent)
    }

    /// Waits until the receiver has read the announced data, or writes the data where the receiver wants it.
    fn follow(&mut self, mut lent: LentData) -> Result<bool, Broken> {
        let readable = lent.readable;
        loop {
            let (end, go_on) = match self.wait(Some(&lent))? {
                Woken::Progress(Progress::Complete(_)) => (End::Read, true),
                Woken::Progress(Progress::Advertised(a)) if !readable => {
                    let room = a.length.min(lent.rest - lent.taken);
                    match self.write(a.key, a.length, room) {
                        Some(n) => lent.taken += n,
                        None if self.moved.fault.is_some() => return Ok(false),
                        None => continue,
                    }
                    if lent.taken < lent.rest {
                        // The receiver will post more receives for the rest of the data (A6).
                        self.stream.endpoint.send.transfers.await_more();
                        continue;
                    }
                    self.end(End::Written { directly: a.directly });
                    return Ok(true);
                }
                // The advertisement wins over the descriptor that this end sent (A12): a receiver that advertised does
                // not use the descriptor.
                Woken::Progress(Progress::Advertised(a)) => {
                    lent.announced = false;
                    let taken = self.take_back(&mut lent);
                    if taken == 0 && self.write(a.key, a.length, a.length).is_some() {
                        self.end(End::Written { directly: a.directly });
                    }
                    return Ok(self.moved.fault.is_none());
                }
                Woken::Progress(Progress::InMessages) => (End::Refused, false),
                Woken::Progress(Progress::Waiting) => continue,
                Woken::Scanned => (End::Scanned, false),
                Woken::Interrupted => (End::Abandoned, false),
            };
            self.take_back(&mut lent);
            // The receiver may have read all of the data while this end decided.
            let all = lent.taken == lent.rest;
            self.end(if all && readable { End::Read } else { end });
            return Ok(all || go_on);
        }
    }

    /// Ends RDMA read, and goes on behind the bytes that the receiver read from the program's memory.
    fn take_back(&mut self, lent: &mut LentData) -> u32 {
        let read = lent.take_back();
        self.from.skip(read as usize);
        self.moved.bytes += read as usize;
        read
    }

    /// Waits for the receiver's advertisement, in large-receive mode without RDMA read (A11).
    fn wait_for_advertisement(&mut self) -> Result<bool, Broken> {
        let transfers = &self.stream.endpoint.send.transfers;
        transfers.await_advertisement();
        match self.wait(None)? {
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

    /// Gives what the receiver has done about the transfer by now.
    fn look(&self, lent: Option<&LentData>) -> Result<Progress, Broken> {
        self.stream.poll();
        self.stream.absorb_if_free()?;
        if let Some(lent) = lent.filter(|l| l.readable && l.read_by_now() == l.rest) {
            return Ok(Progress::Complete(lent.rest));
        }
        let position = self.stream.endpoint.send.total();
        Ok(self.stream.endpoint.send.transfers.progress(position, self.abilities))
    }

    fn wait(&mut self, lent: Option<&LentData>) -> Result<Woken, Broken> {
        let waits = &self.stream.endpoint.send.waits;
        waits.store(1, Relaxed);
        let woken = self.wait_for_progress(lent);
        waits.store(0, Relaxed);
        woken
    }

    fn wait_for_progress(&mut self, lent: Option<&LentData>) -> Result<Woken, Broken> {
        let (socket, stream) = (self.socket, self.stream);
        self.awaits.get_or_insert_with(|| Awaits::peer(&stream.endpoint.send));
        let transfers = &stream.endpoint.send.transfers;
        let mut scanned = time::now();
        let period = if stream.is_between_hosts() { SCAN_ELSEWHERE } else { SCAN };
        loop {
            if stream.send_due_now() {
                ring::ring(socket);
            }
            let left = period.saturating_sub(time::now() - scanned);
            let how = Wait::in_transfer(left, self.limit);
            let waited = match self.stopped {
                None => wait::wait(socket, stream, &how, || {
                    !matches!(self.look(lent), Ok(Progress::Waiting))
                }),
                Some(e) => Err(e),
            };
            self.stopped = waited.err();
            match self.look(lent)? {
                Progress::Waiting => {}
                progress => return Ok(Woken::Progress(progress)),
            }
            let returns =
                returning::is_due(stream) || stream.own().sending.0.direction.state().recalled;
            if waited != Ok(wait::Woken::Perhaps)
                || returns
                || stream.is_held_back()
                || stream.endpoint.has(flag::ANCHOR_ENDED | flag::RESET | flag::SEND_SHUT)
            {
                return Ok(Woken::Interrupted);
            }
            if time::now() - scanned >= period {
                scanned = time::now();
                let taken = lent.filter(|l| l.readable).map_or(0, LentData::read_by_now);
                let over = transfers.scan(taken);
                stream.publish_transfers();
                if over {
                    return Ok(Woken::Scanned);
                }
            }
        }
    }
}
