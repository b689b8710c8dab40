//! Bits of readiness; those of poll and of epoll are the same.

/// Data to read.
pub(crate) const IN: u32 = libc::EPOLLIN as u32;
/// Urgent data.
pub(crate) const PRI: u32 = libc::EPOLLPRI as u32;
/// Space to write.
pub(crate) const OUT: u32 = libc::EPOLLOUT as u32;
/// Error; always reported.
pub(crate) const ERR: u32 = libc::EPOLLERR as u32;
/// Both directions ended; always reported.
pub(crate) const HUP: u32 = libc::EPOLLHUP as u32;
/// The peer sends no more.
pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// Data to read, by its other name.
pub(crate) const RDNORM: u32 = libc::EPOLLRDNORM as u32;
/// Space to write, by its other name.
pub(crate) const WRNORM: u32 = libc::EPOLLWRNORM as u32;
/// What is reported without being asked for.
pub(crate) const ALWAYS: u32 = ERR | HUP;
/// Any wish to read.
pub(crate) const ANY_IN: u32 = IN | RDNORM | RDHUP;
/// Any wish to write.
pub(crate) const ANY_OUT: u32 = OUT | WRNORM;
