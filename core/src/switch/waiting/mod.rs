//! Has a thread sleep until something happens on a connection, and wakes the threads that sleep at the other end.
//!
//! This folder looks at the anchor in the kernel, has connections go on with their way back to TCP, and rings the
//! peer's bell. It moves none of the program's bytes, and decides nothing of the stream. Other modules
//! [`wait`](wait::wait), count a thread as asleep ([`armed`]), and [`ring`].

pub(in crate::switch) mod armed;
mod how;
mod look;
pub(in crate::switch) mod ring;
pub(in crate::switch) mod sleep;
pub(in crate::switch) mod wait;
