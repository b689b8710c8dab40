//! When the helper looks, and when it sleeps.
//!
//! The helper sleeps while the completion queues are armed. It ticks for a moment after something happened. It does not
//! disturb a program that polls by itself: that program arms the queues when it sleeps.

use super::calls::HelperCalls;
use super::devices::Retired;
use super::{calls, closed, messages};
use crate::fabric::adapters;
use crate::fabric::fork_gate::no_fork;
use crate::fabric::helper::{self, Helper, HelperWork, Told};
use crate::fabric::link::{ended, former_links, Link, LinkPort, Tell};
use crate::fabric::meeting;
use crate::fabric::sharing::invitations;
use crate::sys::{handlers, process};
use std::sync::Arc;

/// A program that did not look for so many ticks in a row polls no more. A busy machine may keep it from its processor
/// for one tick.
const UNSEEN: u32 = 2;
/// Between two looks while something goes on, in nanoseconds.
const TICK: u64 = 10_000_000;
/// How often the helper tries what another process asks for, a tick apart.
const ATTEMPTS: u32 = 100;

/// What the helper remembers from round to round.
#[derive(Default)]
struct Rounds {
    /// Nothing is to be done, and a thread that uses connections would wake the helper.
    idle: bool,
    /// The program's looks, as of the last round, and ticks without a new one.
    looks: u32,
    ticks_unseen: u32,
    /// A link has something left to do, as of the last look at all of them.
    links_are_busy: bool,
    /// How long (ns) to sleep at most while there is nothing to do.
    longest: Option<u64>,
    /// Links whose connections go back to TCP.
    returning: Vec<Arc<Link>>,
    /// Another process may want something: the helper looks so often yet.
    requests: u32,
    retired: Retired,
}

/// Sets the helper's work, before a thread needs the helper.
pub(in crate::fabric) fn install(calls: HelperCalls) {
    helper::install(HelperWork { run, reachable: calls.reachable });
    calls::set(calls);
}

/// The helper thread's work. It never returns.
fn run(helper: &'static Helper) {
    process::let_library_signals_in();
    handlers::never_run_here();
    let mut rounds = Rounds::default();
    loop {
        rounds.next(helper);
    }
}

impl Rounds {
    fn next(&mut self, helper: &Helper) {
        // A fork may come meanwhile.
        let is_asked = self.serve_requests();
        let seen_to = self.come_to_returning();
        let told = self.sleep(helper, is_asked);
        let _gate = no_fork();
        // Perhaps the last of it.
        seen_to.into_iter().for_each(|link| link.note_seen_to());
        helper.set_dormant(false);
        self.heed(helper, &told);
        let ports = adapters::in_use();
        ports.iter().for_each(|port| catch_up(port));
        let requested = meeting::progress() | invitations::progress(helper.address());
        let looked = self.note_looks(&ports, &told);
        let program_stopped_polling = self.ticks_unseen == UNSEEN;
        self.look_after_links(&ports, &told, looked, program_stopped_polling);
        let mut busy = requested | self.links_are_busy | closed::end_closed();
        busy |= former_links::end_replaced();
        // Last: none that ended just now is forgotten.
        busy |= ended::let_go();
        busy |= !self.returning.is_empty();
        busy |= self.retired.close();
        self.longest = meeting::next_due();
        helper::set_busy(busy);
        for port in &ports {
            if busy {
                port.device.notify_helper();
            } else if told.count == 0 {
                port.device.tick();
            }
        }
        // A thread that uses connections would wake the helper again at once.
        self.idle =
            program_stopped_polling && !busy && ports.iter().all(|port| port.device.is_attended());
    }

    /// Tries what another process asks for. True: the helper tries once more in a moment.
    fn serve_requests(&mut self) -> bool {
        let is_asked = self.requests > 0 && calls::serve_requests();
        self.requests = if is_asked { self.requests - 1 } else { 0 };
        is_asked
    }

    /// Goes on with what returns to TCP; those for which nothing is left to be done.
    fn come_to_returning(&mut self) -> Vec<Arc<Link>> {
        let goes_on = |link: &Arc<Link>| calls::come_to(link);
        let (on, over) = self.returning.drain(..).partition(goes_on);
        self.returning = on;
        over
    }

    fn sleep(&self, helper: &Helper, is_asked: bool) -> Told {
        let mut nap = Some(self.longest.map_or(TICK, |due| due.min(TICK)));
        if self.idle && !is_asked {
            helper.set_dormant(true);
            // The work that there was before that woke no thread.
            if !look_for_work() {
                nap = self.longest;
            }
        }
        helper.sleep(nap)
    }

    /// Heeds what the helper was told beside completions.
    fn heed(&mut self, helper: &Helper, told: &Told) {
        if told.removal {
            let lost = adapters::in_use().into_iter().find(|port| port.device.take_loss());
            lost.into_iter().for_each(|port| self.retired.add(port));
        }
        if told.kicked {
            helper.take_kick();
            self.requests = ATTEMPTS;
            while let Some(message) = helper.next_message() {
                messages::heed(&message);
            }
        }
    }

    /// Counts how long the program has not looked by itself; true if it did.
    fn note_looks(&mut self, ports: &[&'static LinkPort], told: &Told) -> bool {
        let now = ports.iter().fold(0u32, |sum, port| sum.wrapping_add(port.device.looks()));
        let looked = now != self.looks;
        self.looks = now;
        self.ticks_unseen = match (looked, told.count) {
            (true, _) => 0,
            (false, 0) => UNSEEN.min(self.ticks_unseen + 1),
            (false, _) => self.ticks_unseen,
        };
        looked
    }

    fn look_after_links(
        &mut self,
        ports: &[&'static LinkPort],
        told: &Told,
        looked: bool,
        program_stopped_polling: bool,
    ) {
        if told.count == 0 || told.kicked || !looked {
            let tell = if told.kicked { Tell::Certain } else { Tell::All };
            self.links_are_busy = false;
            for port in ports {
                port.each_link(|link| self.links_are_busy |= link.tick(tell));
                let awaits = told.kicked
                    || program_stopped_polling
                    || self.links_are_busy
                    || helper::is_busy();
                if awaits && !port.device.is_armed() && port.device.arm() {
                    port.catch_up();
                }
            }
        } else if self.links_are_busy {
            // A move waits for nobody.
            for port in ports {
                port.each_link(|link| link.progress());
            }
        }
        if self.links_are_busy {
            for port in ports {
                port.each_link(|link| self.note_returning(link));
            }
        }
    }

    fn note_returning(&mut self, link: &Arc<Link>) {
        if link.is_returning() && !self.returning.iter().any(|one| Arc::ptr_eq(one, link)) {
            self.returning.push(link.clone());
        }
    }
}

/// Takes what has completed over a port.
fn catch_up(port: &LinkPort) {
    let device = &port.device;
    let woken = device.woken();
    device.take_notice();
    port.catch_up();
    // A thread that sleeps on had the queue tell of the next completion, and this was not the one. A thread that was
    // woken looks by itself.
    if !device.is_armed()
        && device.woken() == woken
        && port.any_link(Link::has_sleeper)
        && device.arm()
    {
        port.catch_up();
    }
}

/// True if a link has something left to do, if a peer is to learn something in a moment, or if no other thread is
/// notified of what completes.
fn look_for_work() -> bool {
    let _gate = no_fork();
    let has_work = |link: &Link| link.has_rest() || link.is_busy();
    adapters::any_port(|port| !port.device.is_attended() || port.any_link(has_work))
}
