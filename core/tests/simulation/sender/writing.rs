//! An RDMA write into a posted receive, in steps: half of it, the rest, and the end.

use super::{Sender, State, Then, Write};
use crate::peer::{Peer, Turn};
use sanshim_core::session::transfer::End;
use sanshim_core::session::{Advertisement, Complete, Control};

impl Sender {
    pub(super) fn begin_write(
        &mut self,
        to: Advertisement,
        most: u32,
        then: Then,
        turn: &mut Turn,
    ) -> State {
        let length = (most.min(to.length) as usize).min(self.length - self.done);
        let fails = turn.rng.percent(self.chances.fail);
        if fails && turn.rng.percent(20) {
            turn.me.sending.forbid();
        }
        if fails || turn.other.dead {
            return self.not_written(&to, then, turn.me);
        }
        turn.me.sending.writes(to.key, to.length);
        match turn.other.writable.begin_write(to.key, to.length) {
            Ok(at) => {
                assert_eq!(at as u64, to.address, "written elsewhere than advertised");
                State::Write(Write { to, at, length, begun: false, ended: None, then })
            }
            Err(_) => self.not_written(&to, then, turn.me),
        }
    }

    fn not_written(&self, to: &Advertisement, then: Then, me: &mut Peer) -> State {
        me.sending.used(to.key, false);
        match then {
            Then::Plan => State::Plan,
            Then::Follow(announced) => State::Follow(announced),
            Then::Crossed => {
                me.sending.forget();
                State::Plan
            }
        }
    }

    pub(super) fn write(&mut self, mut write: Write, turn: &mut Turn) -> State {
        let Write { to, at, length, begun, ended, then } = write;
        if let Some(n) = ended {
            return self.written(&to, n, then, turn);
        }
        let Turn { me, other, rng, .. } = turn;
        if other.dead {
            return self.not_written(&to, then, me);
        }
        let from = self.base + self.done;
        let mut copy = |n| other.incoming[at..at + n].copy_from_slice(&me.outgoing[from..from + n]);
        if !begun {
            copy(length / 2);
            write.begun = true;
            return State::Write(write);
        }
        if !turn.out.is_quiet() {
            // A write is not seen before the messages that went before it.
            return State::Write(write);
        }
        if rng.percent(self.chances.fail) {
            other.writable.end_write(0, 0);
            return self.not_written(&to, then, me);
        }
        let n = if rng.percent(self.chances.fail) { rng.range(1, length) } else { length };
        copy(n);
        other.writable.end_write(n, me.sent);
        if !matches!(then, Then::Plan) {
            me.announced.1 += n as u32;
        }
        State::Write(Write { ended: Some(n), ..write })
    }

    fn written(&mut self, to: &Advertisement, n: usize, then: Then, turn: &mut Turn) -> State {
        let me = &mut turn.me;
        let before = me.sending.bytes();
        me.sending.wrote(n as u32);
        me.sending.used(to.key, true);
        self.writes += 1;
        assert_eq!(me.count_sent(before), n as u64);
        self.done += n;
        let complete = Complete { key: to.key, bytes: n as u32, behaviour: None };
        me.due.note(Control::TransferComplete(complete));
        me.send_due(turn.out);
        if let Then::Follow(mut announced) = then {
            announced.written += n as u32;
            if announced.written < announced.rest {
                me.sending.await_more();
                return State::Follow(announced);
            }
        }
        self.end(me, End::Written { directly: to.directly });
        State::Plan
    }
}
