//! A connection that two processes share. Either one does nothing while the other makes round trips, or both send in
//! turns.

use super::channel::BenchChannel;
use super::endpoint::{self, BenchSocket};
use super::{round_trip, warm_up};
use crate::error::BenchError;
use crate::floor::SharedMapping;
use crate::options::Options;
use crate::report::{self, Subject};
use crate::stats::{self, Summary};
use crate::sys;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Whose turn it is, in the first word both processes share.
const PARENTS: u64 = 0;
const CHILDS: u64 = 1;

/// A forked child. It is ended when this is dropped.
struct Child(libc::pid_t);

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not waited for yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

fn fork(child: impl FnOnce()) -> Result<Child, BenchError> {
    // SAFETY: this process has one thread, so the child may go on as it likes.
    let pid = sys::check("fork", unsafe { libc::fork() })?;
    if pid == 0 {
        if sys::die_with_parent().is_ok() {
            child();
        }
        // SAFETY: no preconditions.
        unsafe { libc::_exit(0) };
    }
    Ok(Child(pid))
}

/// Round trips, while a child has the connection too and leaves it alone.
pub(crate) fn shared_client(options: &Options) -> Result<(), BenchError> {
    let channel = BenchChannel::new(endpoint::connect(options)?, options.wait)?;
    // This comes before the fork, because a connection that others have as well stays where it is.
    warm_up::client(&channel, options.warm_up)?;
    let _child = fork(|| loop {
        // SAFETY: no preconditions.
        unsafe { libc::pause() };
    })?;
    round_trip::measure(options, &channel)
}

/// Parent and child send in turns. A turn ends when the other may begin.
pub(crate) fn client(options: &Options) -> Result<(), BenchError> {
    let channel = BenchChannel::new(endpoint::connect(options)?, options.wait)?;
    // This comes before the fork, because a connection that others have as well stays where it is.
    warm_up::client(&channel, options.warm_up)?;
    let shared = SharedMapping::new(4096)?;
    let turn = shared.word(0);
    let out = vec![0x5a; options.size];
    let wait_for = |whose| {
        while turn.load(Acquire) != whose {
            std::thread::yield_now();
        }
    };
    let _child = fork(|| loop {
        wait_for(CHILDS);
        if channel.send_all(&out).is_err() {
            return;
        }
        turn.store(PARENTS, Release);
    })?;
    let pair = stats::measure(options, || {
        channel.send_all(&out)?;
        turn.store(CHILDS, Release);
        wait_for(PARENTS);
        Ok(())
    })?;
    let one = Summary {
        count: pair.count * 2,
        mean: pair.mean / 2.0,
        typical: pair.typical / 2.0,
        p50: pair.p50 / 2.0,
        p99: pair.p99 / 2.0,
    };
    report::latency(Subject::Socket, options, &one);
    Ok(())
}

pub(crate) fn server(options: &Options, listener: &BenchSocket) -> Result<(), BenchError> {
    let channel = BenchChannel::new(endpoint::accept(listener)?, options.wait)?;
    warm_up::server(&channel)?;
    let mut buffer = vec![0; options.size];
    while channel.receive_all(&mut buffer)? {}
    Ok(())
}
