//! How far a move of a link to another process has come, as this process knows it.

use super::wire::Wire;
use crate::fabric::request::Cookie;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// No move.
pub(super) const REST: u32 = 0;
/// Move is due, or was sent.
pub(super) const ASKED: u32 = 1;
/// Moved came: all that the peer has sent is here.
pub(super) const ANSWERED: u32 = 2;
/// The peer moves: Moved is due, or was sent, or the new queue pair is being connected.
pub(super) const FOLLOWS: u32 = 3;
/// The new queue pair is here and is being connected.
pub(super) const ARRIVES: u32 = 4;

/// A number and a cookie, changed and read by different threads.
#[derive(Default)]
pub(super) struct SharedTarget {
    number: AtomicU32,
    cookie: [AtomicU64; 2],
}

impl SharedTarget {
    pub(super) fn set(&self, number: u16, cookie: Cookie) {
        self.cookie[0].store(cookie[0], Relaxed);
        self.cookie[1].store(cookie[1], Relaxed);
        self.number.store(number.into(), SeqCst);
    }

    pub(super) fn get(&self) -> (u16, Cookie) {
        let number = self.number.load(Acquire) as u16;
        (number, [self.cookie[0].load(Relaxed), self.cookie[1].load(Relaxed)])
    }
}

/// Part of a link.
#[derive(Default)]
pub(super) struct Moving {
    pub(super) course: AtomicU32,
    /// Move or Moved was sent, or the new queue pair is not connected: nothing may be sent.
    pub(super) sealed: AtomicBool,
    /// Where the peer is to come to, and the process that gets control.
    pub(super) ours: SharedTarget,
    pub(super) heir: AtomicU64,
    pub(super) heir_pid: AtomicU32,
    /// Where the peer is.
    pub(super) theirs: SharedTarget,
    /// The queue pair in use ended meanwhile.
    pub(super) broken: AtomicBool,
    /// Clock (ns) when that was told.
    pub(super) since: AtomicU64,
    /// It was, before the new queue pair is known to be connected.
    pub(super) is_early: AtomicBool,
    /// The queue pair that is being connected to it. The helper's.
    pub(super) following: UnsafeCell<Option<Wire>>,
}
