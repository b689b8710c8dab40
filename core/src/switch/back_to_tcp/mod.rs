//! The way back to TCP, which either end begins at any time while the other goes on.
//!
//! [`detach`] has the whole of it, in the steps [`leave`] and [`read_out`]. [`recall`] is for programs that cannot read
//! from the segment. The way back begins on request ([`request`], [`helper_calls`]), where nothing happens ([`idle`]),
//! or where a connection is handed on. This folder sends over the anchor what the peer wants again, and tells epoll
//! sets. It waits for room there at most, and never for the peer. It moves no bytes to or from the program.

pub(in crate::switch) mod detach;
pub(in crate::switch) mod helper_calls;
pub(in crate::switch) mod idle;
mod leave;
pub(in crate::switch) mod limits;
mod linger;
mod read_out;
pub(in crate::switch) mod recall;
mod request;
pub(in crate::switch) mod resend;
pub(in crate::switch) mod resend_for_peer;

/// Hears requests of `sanctl`, and has idle connections go back to TCP. A thread that is about to sleep calls this, and
/// other threads do so now and then. The caller holds no lock.
#[inline]
pub(in crate::switch) fn look_around() {
    request::check();
    idle::check();
}
