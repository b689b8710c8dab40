//! How far a connection is on its way back to TCP, as its end's state says. This module changes nothing of it
//! ([`back_to_tcp`](crate::switch::back_to_tcp)).

use crate::provider::shm::RETURNED;
use crate::session::WayOut;
use crate::switch::endpoint::flag;
use crate::switch::stream::Stream;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// So did its end that sends: nothing can be sent over TCP either.
pub(in crate::switch) const ENDED: u32 = flag::RESET | flag::BROKEN_PIPE;

/// The connection ended: there is nothing to bring back.
pub(in crate::switch) const OVER: u32 = flag::RESET | flag::ANCHOR_ENDED | flag::BROKEN_PIPE;

/// True if either end has begun to go back. One load of each side's word.
#[inline]
pub(in crate::switch) fn is_due(stream: &Stream) -> bool {
    stream.peer().sending.0.finished.load(Relaxed) & RETURNED != 0
        || stream.endpoint.state().is_returning()
}

/// True if this end has left, and still has to send part of what goes over TCP first: there was no room, or a process
/// died meanwhile. A thread that is about to send asks this under the send lock.
#[inline]
pub(in crate::switch) fn is_half_left(stream: &Stream) -> bool {
    let state = stream.endpoint.state();
    state.way_out() == WayOut::Leaving && !state.has(ENDED)
}

/// True if this end is about to leave, or half left: something is to go over TCP still. Send lock.
pub(in crate::switch) fn is_leaving(stream: &Stream) -> bool {
    stream.own().sending.0.direction.state().is_final() && stream.endpoint.way_out() != WayOut::Left
}

/// True if the peer sends in this end's stead at this moment, or says so for ever: nothing goes over TCP until it is done,
/// whatever room there is.
pub(in crate::switch) fn is_stood_in_for(stream: &Stream) -> bool {
    stream.own().sending.0.direction.state().claimed
}

/// The events of the anchor after which an end that [half left](is_half_left) may go on. Zero: only the clock tells.
pub(in crate::switch) fn room_events(stream: &Stream) -> i16 {
    if is_stood_in_for(stream) {
        0
    } else {
        libc::POLLOUT
    }
}

/// How long (ns) to sleep at most while that is so: the kernel's room is looked for by the clock.
pub(in crate::switch) const NAP: u64 = 10_000_000;

/// Longest sleep on the connection, if this end [half left](is_half_left).
#[inline]
pub(in crate::switch) fn longest_nap(stream: &Stream) -> Option<u64> {
    is_half_left(stream).then_some(NAP)
}

/// True if either end has begun to go back, or this end has stopped reading from the segment.
pub(in crate::switch) fn is_begun(stream: &Stream) -> bool {
    is_due(stream) || is_recalled(stream)
}

/// True if the peer wants again what it did not read.
pub(in crate::switch) fn is_recalled(stream: &Stream) -> bool {
    stream.own().sending.0.direction.state().recalled
}

/// True if the peer sends over TCP again, behind what lies in the segment, and this end reads that. Acquire: all of it
/// is there then.
pub(in crate::switch) fn continues_over_tcp(stream: &Stream) -> bool {
    let word = stream.peer().sending.0.direction.state();
    word.left && !word.pulled && !stream.endpoint.way_in().is_read_out()
}

/// True if the peer left, and what lies in the segment comes over TCP as well, and this end has not turned there.
pub(in crate::switch) fn comes_again(stream: &Stream) -> bool {
    let word = stream.peer().sending.0.direction.state();
    word.left && word.pulled && !stream.endpoint.way_in().is_read_out()
}

/// True if what the kernel says of the anchor concerns bytes that are TCP's.
pub(in crate::switch) fn is_kernels(stream: &Stream) -> bool {
    stream.peer().sending.0.direction.state().left || stream.endpoint.way_in().is_read_out()
}

/// The peer has left: this end does the same at the next opportunity, although there was no hint, as a peer that is not
/// honest may have it.
#[cold]
pub(in crate::switch) fn follow(stream: &Stream) {
    if !is_due(stream) {
        stream.peer().sending.0.finished.fetch_or(RETURNED, SeqCst);
    }
}

/// True if this end may leave later, as the peer wants.
pub(in crate::switch) fn may_go_on(stream: &Stream) -> bool {
    let state = stream.endpoint.state();
    state.way_out() != WayOut::Left && !state.has(ENDED)
}

/// True if a return that has not begun may do so at another time.
pub(in crate::switch) fn may_begin_later(stream: &Stream) -> bool {
    let state = stream.endpoint.state();
    state.way_out() != WayOut::Left && !state.has(OVER)
}
