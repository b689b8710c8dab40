//! The anchor, which is the kernel's TCP socket of a connection on the SAN: its doorbell, what it tells of the connection's
//! end, which of its bytes are the stream's, and its options.

pub(in crate::switch) mod doorbell;
pub(in crate::switch) mod ends;
pub(in crate::switch) mod link;
pub(in crate::switch) mod options;
pub(in crate::switch) mod ready;
pub(in crate::switch) mod returning;
pub(in crate::switch) mod switchover;
pub(in crate::switch) mod untaken_offer;
pub(in crate::switch) mod watchers;
