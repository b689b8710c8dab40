//! Sleeping until something happens on a connection, and waking whoever sleeps at the other end.
//!
//! Looks at the anchor in the kernel, has connections go on with their way back to TCP, and rings the peer's bell.
//! Moves none of the program's bytes, and decides nothing of the stream. Others [`wait`](wait::wait), count a thread as
//! asleep ([`armed`]), and [`ring`].

pub(in crate::switch) mod armed;
mod how;
mod look;
pub(in crate::switch) mod ring;
pub(in crate::switch) mod sleep;
pub(in crate::switch) mod wait;
