//! Connectors that came to the offer socket, and what they offered until an acceptor asks for it. When room is short,
//! each user's connectors take it from one another first.

use crate::provider::shm::budget;
use crate::switch::policy::{self, Relation};
use crate::switch::socket::names::Names;
use crate::switch::socket::tuple::Tuple;
use crate::sys::caller::{Caller, CallerSaid};
use crate::sys::{closing, hidden, time, Fd};
use std::num::NonZeroU64;

/// Most connectors that are heard at a time: the others wait for the next look.
const MOST_HEARD: usize = 64;
/// Most sessions kept for connections that have made no transfer since.
const MOST_KEPT: usize = 512;
/// Descriptors of each: no more are kept than these leave room for.
const OFFERS_DESCRIPTORS: u64 = 3;
/// Most connectors that have not offered anything yet.
const MOST_SILENT: usize = 64;
/// How long (ns) a session is kept, and a silent connector.
const KEPT_FOR: u64 = 10_000_000_000;
/// Most users that the log names because they may not share memory with us.
const MOST_NAMED: usize = 16;

/// See the module.
#[derive(Default)]
pub(super) struct Callers {
    kept: Vec<Offer>,
    silent: Vec<Silent>,
    refused: Vec<u32>,
}

/// A session that a connector offered.
pub(super) struct Offer {
    /// The name under which the connector found this end of the connection.
    name: Tuple,
    /// Hidden: the segment, and its bells as `Bells::adopt` takes them.
    pub(super) passed: [Fd; 3],
    pub(super) connector: Relation,
    /// The connector's socket, as it says. `None`: a proof has to show that it is the other end.
    pub(super) cookie: Option<NonZeroU64>,
    /// The connector's user.
    pub(super) uid: u32,
    at: u64,
}

impl Offer {
    /// No acceptor takes the offer.
    pub(super) fn close(self) {
        self.passed.into_iter().for_each(hidden::close);
    }
}

/// Bytes in which a connector says what it offers a session for.
const ENCODED: usize = Tuple::ENCODED + size_of::<u64>();

/// The name of the connection that a session is offered for, and the connector's socket. No socket has the cookie zero.
pub(super) fn encode(name: &Tuple, cookie: Option<NonZeroU64>) -> Vec<u8> {
    let cookie = cookie.map_or(0, NonZeroU64::get);
    [name.encode().as_slice(), &cookie.to_ne_bytes()].concat()
}

fn decode(bytes: &[u8]) -> Option<(Tuple, Option<NonZeroU64>)> {
    let (name, cookie) = bytes.split_at_checked(Tuple::ENCODED)?;
    let cookie = u64::from_ne_bytes(cookie.try_into().ok()?);
    Some((Tuple::decode(name)?, NonZeroU64::new(cookie)))
}

/// A connector that was accepted before it had offered anything, and when (clock, ns).
struct Silent {
    caller: Caller,
    since: u64,
}

impl Callers {
    /// The session that was offered for a connection, if one was. One that `is_for_it` denies goes.
    pub(super) fn take(
        &mut self,
        names: Names,
        is_for_it: impl Fn(&Offer) -> bool,
    ) -> Option<Offer> {
        let is_named = |one: &Offer| names.each().any(|(_, name)| name == one.name);
        while let Some(at) = self.kept.iter().rposition(is_named) {
            let offer = self.kept.remove(at);
            if is_for_it(&offer) {
                return Some(offer);
            }
            log::info!(
                "a session that user {} offers is not for this connection, or its socket is gone",
                offer.uid
            );
            offer.close();
        }
        None
    }

    /// Hears the connectors that wait at a listener, but not so many that the caller would wait for it.
    pub(super) fn hear(&mut self, listener: Fd) {
        let now = time::now();
        self.forget_old(now);
        for Silent { caller, since } in std::mem::take(&mut self.silent) {
            self.take_in(caller, since, now);
        }
        for _ in 0..MOST_HEARD {
            if closing::is_overrun() {
                return;
            }
            let Ok(caller) = Caller::accept(listener) else { return };
            if policy::may_share_with(caller.uid) {
                self.take_in(caller, now, now);
            } else {
                self.say_refused(caller.uid);
            }
        }
    }

    fn take_in(&mut self, caller: Caller, since: u64, now: u64) {
        let mut buffer = [0u8; ENCODED + 1];
        let (pid, uid) = (caller.pid, caller.uid);
        match caller.hear(&mut buffer) {
            CallerSaid::Silence(caller) => {
                self.silent.push(Silent { caller: caller.keep(), since });
                if self.silent.len() > MOST_SILENT {
                    drop(oldest_of_most(&mut self.silent, |one| one.caller.uid));
                }
            }
            CallerSaid::Message(length, passed) => {
                let passed = passed.map(hidden::keep_aside);
                let Some((name, cookie)) = decode(&buffer[..length]) else {
                    return passed.into_iter().for_each(hidden::close);
                };
                let connector = Relation::to(pid, uid);
                self.kept.push(Offer { name, passed, connector, cookie, uid, at: now });
                self.drop_surplus();
            }
            CallerSaid::Nonsense => {}
        }
    }

    fn forget_old(&mut self, now: u64) {
        self.silent.retain(|one| now - one.since <= KEPT_FOR);
        let old = self.kept.iter().take_while(|one| now - one.at > KEPT_FOR).count();
        self.kept.drain(..old).for_each(Offer::close);
        self.drop_surplus();
    }

    fn drop_surplus(&mut self) {
        let room = budget::descriptors_left() / OFFERS_DESCRIPTORS;
        while self.kept.len() > MOST_KEPT.min(room as usize).max(1) {
            if let Some(oldest) = oldest_of_most(&mut self.kept, |one| one.uid) {
                oldest.close();
            }
        }
    }

    /// Once for each user.
    fn say_refused(&mut self, uid: u32) {
        if self.refused.len() < MOST_NAMED && !self.refused.contains(&uid) {
            self.refused.push(uid);
            log::info!("a connector of user {uid} may not share memory with us (allow_users)");
        }
    }

    /// Nothing of it is needed any more.
    pub(super) fn close(self) {
        self.kept.into_iter().for_each(Offer::close);
    }

    /// Forgets them in a fork child, whose parent goes on to hear them.
    pub(super) fn forget(mut self) {
        std::mem::take(&mut self.silent).into_iter().for_each(|one| one.caller.forget());
        self.close();
    }
}

/// Takes out the oldest offer of the user that has most.
fn oldest_of_most<T>(all: &mut Vec<T>, user_of: impl Fn(&T) -> u32) -> Option<T> {
    let mut counts: Vec<(u32, usize)> = Vec::new();
    for one in all.iter() {
        let user = user_of(one);
        match counts.iter_mut().find(|(known, _)| *known == user) {
            Some((_, count)) => *count += 1,
            None => counts.push((user, 1)),
        }
    }
    let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let at = all.iter().position(|one| user_of(one) == most)?;
    Some(all.remove(at))
}

/// Feeds an offer of arbitrary bytes: it is nothing, or what it says.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    if let Some((name, cookie)) = decode(data) {
        let again = decode(&encode(&name, cookie));
        assert_eq!(again, Some((name, cookie)));
    }
}

#[cfg(test)]
mod tests {
    use super::oldest_of_most;

    #[test]
    fn who_has_most_gives_way() {
        let mut all = vec![(7, 'a'), (8, 'b'), (8, 'c'), (9, 'd'), (8, 'e'), (7, 'f')];
        let mut gone = String::new();
        while let Some((_, one)) = oldest_of_most(&mut all, |(user, _)| *user) {
            gone.push(one);
        }
        assert_eq!(&gone[..1], "b");
        assert_eq!(gone.len(), 6);
        // The oldest of a user before that user's others.
        let at = |one| gone.find(one);
        assert!(at('b') < at('c') && at('c') < at('e') && at('a') < at('f'));
        assert!(at('d') > at('c'), "a user who has one gives way last");
    }
}
