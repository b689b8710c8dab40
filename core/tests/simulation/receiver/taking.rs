//! In what order a receive takes what there is: a copy of `stream/receive.rs` and `stream/rdma_receive.rs`.

use super::{Receiver, State};
use crate::link::Link;
use crate::memory::{Reading, Refusal};
use crate::peer::{Peer, Turn};
use sanshim_core::session::transfer::{Posting, Rest};
use sanshim_core::session::Control;

/// What a look at announced data led to.
enum Looked {
    Again,
    Nothing,
    Reading(Reading),
}

impl Receiver {
    pub(super) fn count(&mut self, me: &mut Peer, position: u64, bytes: usize) {
        self.pieces.push((position, bytes));
        self.got += bytes;
        me.received += bytes as u64;
    }

    fn put(&mut self, me: &mut Peer, other: &mut Peer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (position, n) = other.taken(bytes.len());
            let (now, rest) = bytes.split_at(n);
            let at = self.base + self.got;
            me.incoming[at..at + n].copy_from_slice(now);
            self.count(me, position, n);
            bytes = rest;
        }
    }

    pub(super) fn attempt(&mut self, ended: bool, turn: &mut Turn) -> State {
        self.lock(turn.me, true);
        while self.got < self.wanted {
            if let Some(rest) = turn.me.receiving.rest() {
                if turn.me.next_read.wrapping_sub(rest.after) as i32 > 0 {
                    match self.look_at_announced(&rest, turn) {
                        Looked::Again => continue,
                        Looked::Nothing => break,
                        Looked::Reading(reading) => {
                            return State::Read { reading, ended, copied: None };
                        }
                    }
                }
            }
            let Turn { me, other, inc, .. } = turn;
            if me.next_read != me.session.expected() || me.absorb(inc) {
                if me.next_read != me.session.expected() {
                    self.take_message(me, other, inc);
                }
                continue;
            }
            let there = inc.buffered();
            if there == 0 {
                break;
            }
            let bytes = inc.take(there.min(self.room()));
            self.put(me, other, &bytes);
        }
        turn.me.update_credit(turn.out);
        turn.me.try_send_due(turn.out);
        self.lock(turn.me, false);
        State::Decide { ended }
    }

    fn look_at_announced(&mut self, rest: &Rest, turn: &mut Turn) -> Looked {
        let Turn { me, other, inc, rng, .. } = turn;
        let advertised = me.receiving.advertised().is_some();
        if advertised || rest.address.is_none() {
            if !advertised && me.has_data_after(rest, inc) {
                me.receiving.close();
                return Looked::Again;
            }
            return if me.absorb(inc) { Looked::Again } else { Looked::Nothing };
        }
        let fails = rng.percent(self.chances.fail);
        if fails || !me.abilities.read {
            let for_ever = !me.abilities.read || rng.percent(20);
            me.receiving.cannot_read();
            me.due.note(Control::SendInMessages(rest.key, for_ever));
            return Looked::Again;
        }
        match other.readable.begin_read(rest.key, rest.length, rest.taken, self.room()) {
            Ok(reading) if !other.dead => Looked::Reading(reading),
            Err(Refusal::Gone) => {
                me.receiving.cannot_read();
                me.due.note(Control::SendInMessages(rest.key, false));
                Looked::Again
            }
            _ => {
                me.receiving.close();
                Looked::Again
            }
        }
    }

    fn take_message(&mut self, me: &mut Peer, other: &mut Peer, inc: &mut Link) {
        let next = me.next_read;
        let (data, body) = me.lengths(next);
        let n = (data - me.offset).min(self.room());
        if me.receiving.rest().is_some_and(|rest| rest.after == next) {
            me.receiving.begun(self.call);
        }
        let from = body + me.offset;
        let bytes = inc.payload(next)[from..from + n].to_vec();
        self.put(me, other, &bytes);
        me.offset += n;
        if me.offset == data {
            me.offset = 0;
            me.repost(inc);
            me.pass_controls(inc);
        }
    }

    /// An RDMA read, its copy in one step and its end in another.
    pub(super) fn read(
        &mut self,
        reading: Reading,
        ended: bool,
        copied: Option<usize>,
        turn: &mut Turn,
    ) -> State {
        let Turn { me, other, rng, .. } = turn;
        let Some(n) = copied else {
            if other.readable.is_owner_dead() {
                return State::Attempt { ended };
            }
            let short = rng.percent(self.chances.fail);
            let n = if short { rng.range(1, reading.length) } else { reading.length };
            let from = &other.outgoing[reading.at..reading.at + n];
            let at = self.base + self.got;
            me.incoming[at..at + n].copy_from_slice(from);
            return State::Read { reading, ended, copied: Some(n) };
        };
        if other.dead || other.readable.end_read(reading, n).is_err() {
            me.receiving.close();
            return State::Attempt { ended };
        }
        other.announced.1 += n as u32;
        State::Got { reading, ended, bytes: n }
    }

    pub(super) fn got(
        &mut self,
        reading: Reading,
        ended: bool,
        n: usize,
        turn: &mut Turn,
    ) -> State {
        let me = &mut turn.me;
        let room = self.room() as u64;
        self.count(me, reading.position, n);
        self.reads += 1;
        if let Some(complete) = me.receiving.read(self.call, n as u32, room, me.abilities) {
            me.due.note(Control::TransferComplete(complete));
        } else if room < u64::from(me.abilities.threshold) {
            if let Posting::SendInMessages(key) = me.receiving.post(room, false, me.abilities) {
                me.due.note(Control::SendInMessages(key, false));
            }
        }
        State::Attempt { ended }
    }
}
