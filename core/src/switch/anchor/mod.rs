//! The anchor, which is the kernel's TCP socket of a connection on the SAN: what it tells of the connection's end,
//! which bytes of the stream go over it, and its options. Beside it are the [`bell`], the [`link`] of a connection
//! between hosts, and the epoll sets that watch it.
//!
//! This room makes the system calls on the anchor. It sleeps only until sleepers have left, or a link has answered. It
//! may call sockets and streams. It does not decide whether a connection is on the SAN, with one exception: it takes
//! back a turn to the SAN that the peer never took ([`switchover`]). Across its door go a
//! [`Socket`](crate::switch::socket::Socket), its [`Stream`](crate::switch::stream::Stream), and descriptors.

pub(in crate::switch) mod behind;
pub(in crate::switch) mod bell;
pub(in crate::switch) mod broken;
pub(in crate::switch) mod ends;
pub(in crate::switch) mod link;
pub(in crate::switch) mod options;
pub(in crate::switch) mod ready;
pub(in crate::switch) mod refusal;
pub(in crate::switch) mod returning;
pub(in crate::switch) mod switchover;
pub(in crate::switch) mod user_timeout;
pub(in crate::switch) mod watchers;
