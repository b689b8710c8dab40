//! The least that a request to a process that sleeps costs, with the data in shared memory. A futex wakes it
//! (blocking), or an eventfd in an epoll set, edge-triggered and never read (epoll). No process looks before it sleeps.

use super::memory::SharedMapping;
use crate::error::BenchError;
use crate::figures::CpuUse;
use crate::options::{Options, WaitKind};
use crate::pace::pace;
use crate::report::Subject;
use crate::{process, sys};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, SeqCst};

/// Offset of the processor time (ns) that the server has used, once it is known.
const SPENT: usize = 0;
/// Offsets of the two directions: the number of the newest message, whether its reader sleeps, the message.
const THERE: usize = 128;
const ASLEEP: usize = 8;
const DATA: usize = 16;
const END: u64 = u64::MAX;

/// One direction, and what wakes its reader.
struct Direction<'a> {
    shared: &'a SharedMapping,
    at: usize,
    /// The eventfd, and the reader's set with it; none for a futex.
    event: Option<(OwnedFd, OwnedFd)>,
}

impl Direction<'_> {
    fn new<'a>(
        shared: &'a SharedMapping,
        at: usize,
        wait: WaitKind,
    ) -> Result<Direction<'a>, BenchError> {
        let event = match wait {
            WaitKind::Blocking => None,
            WaitKind::Epoll => Some(sys::edge_triggered_eventfd()?),
        };
        Ok(Direction { shared, at, event })
    }

    fn send(&self, number: u64, data: &[u8]) -> Result<(), BenchError> {
        self.shared.copy_in(self.at + DATA, data);
        self.shared.word(self.at).store(number, SeqCst);
        if self.shared.word(self.at + ASLEEP).load(SeqCst) == 0 {
            return Ok(());
        }
        match &self.event {
            Some((event, _)) => sys::ring(event.as_raw_fd()),
            None => sys::futex_wake(self.shared.word(self.at)),
        }
    }

    /// Sleeps until another message than that of this number is there; its number.
    fn wait(&self, last: u64) -> Result<u64, BenchError> {
        let newest = self.shared.word(self.at);
        let asleep = self.shared.word(self.at + ASLEEP);
        while newest.load(Acquire) == last {
            asleep.store(1, SeqCst);
            if newest.load(SeqCst) == last {
                match &self.event {
                    Some((_, set)) => sys::epoll_wait_one(set.as_raw_fd())?,
                    None => sys::futex_wait(newest, last)?,
                }
            }
            asleep.store(0, SeqCst);
        }
        Ok(newest.load(Acquire))
    }

    fn receive(&self, last: u64, into: &mut [u8]) -> Result<u64, BenchError> {
        let number = self.wait(last)?;
        self.shared.copy_out(self.at + DATA, into);
        Ok(number)
    }
}

pub(crate) fn run(options: &Options) -> Result<(), BenchError> {
    let span = (DATA + options.size).next_multiple_of(64) + 128;
    let shared = SharedMapping::new(THERE + 2 * span)?;
    let there = Direction::new(&shared, THERE, options.wait)?;
    let back = Direction::new(&shared, THERE + span, options.wait)?;

    let client = || {
        let out = vec![0x5a; options.size];
        let mut into = vec![0; options.size];
        let before = CpuUse::of(std::process::id())?;
        let paced = pace(options, |number| {
            there.send(number + 1, &out)?;
            match back.receive(number, &mut into)? {
                END => Err(BenchError::Peer("ended before it had answered".into())),
                _ => Ok(()),
            }
        })?;
        let spent = CpuUse::of(std::process::id())?.since(&before);
        there.send(END, &out)?;
        if into != out {
            return Err(BenchError::Peer("the echo differs from what was sent".into()));
        }
        while shared.word(SPENT).load(Acquire) == 0 {
            std::thread::yield_now();
        }
        Ok((paced, spent.milliseconds))
    };
    let serve = || -> Result<(), BenchError> {
        let before = CpuUse::of(std::process::id())?;
        let mut buffer = vec![0; options.size];
        let mut last = 0;
        loop {
            last = there.receive(last, &mut buffer)?;
            if last == END {
                let spent = CpuUse::of(std::process::id())?.since(&before);
                shared.word(SPENT).store((spent.milliseconds * 1e6) as u64, SeqCst);
                return Ok(());
            }
            back.send(last, &buffer)?;
        }
    };
    let server = || {
        if let Err(error) = serve() {
            eprintln!("sanbench: the server: {error}");
            // The client is not to sleep for ever.
            let _ = back.send(END, &[]);
        }
    };
    let (paced, client_ms) = process::fork_pair(options, client, server)?;
    let server_ms = shared.word(SPENT).load(Acquire) as f64 / 1e6;
    paced.report(Subject::Floor, options, server_ms, client_ms);
    Ok(())
}
