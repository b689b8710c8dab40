//! What a socket is at present.

/// In no use.
pub(in crate::switch) const FREE: u32 = 0;
/// Neither connected nor listening.
pub(in crate::switch) const FRESH: u32 = 1;
/// Listening.
pub(in crate::switch) const LISTENER: u32 = 2;
/// Connected over plain TCP for good, or not seen by the switch.
pub(in crate::switch) const NATIVE: u32 = 4;
/// Bytes go over the SAN.
pub(in crate::switch) const SAN: u32 = 5;
/// Connected over TCP, and on the SAN as soon as that pays.
pub(in crate::switch) const TCP: u32 = 6;
/// For a moment, until it is clear which of the two the socket is.
pub(in crate::switch) const ENTERING: u32 = 7;
