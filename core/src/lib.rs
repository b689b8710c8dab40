//! The core of sanshim: it moves the TCP connections of unmodified programs to shared memory, or to RDMA.
//!
//! The program runs with `libsanshim.so` in front of libc. That library is the crate `shim`: hooks that ask this crate
//! and turn its answers into libc's. The decisions and the state lie here. docs/architecture.md says why it is built
//! so. Read these pages with `cargo doc --document-private-items`: then all links lead somewhere.
//!
//! # The way of a connection
//!
//! 1. A program calls `connect` or `accept`. The kernel makes its TCP connection, and the program's descriptor is that
//!    socket for its whole life: the *anchor*. [`switch`] notes which end this is (`switch/descriptors`).
//! 2. Transfers go to the kernel and are counted. Most connections never get further (`switch/socket/traffic`).
//! 3. A busy connection looks for its other end (`switch/setup`). If the other end runs the library too, and both are
//!    allowed to, they agree on a *segment*: memory that both map (`provider/shm`).
//! 4. Each direction turns to the segment at a byte that both ends know (`switch/anchor`).
//! 5. It goes back to TCP when nothing happens on it for some seconds, before another program gets it, or when
//!    `sanctl detach` asks for it (`switch/back_to_tcp`). The program does not notice.
//!
//! Between hosts the ends look for each other over RDMA, and each has a segment of its own ([`fabric`]).
//!
//! # The way of a byte
//!
//! 1. The hook of `send` finds the socket ([`switch::table`]), takes the step that tells its lane
//!    ([`switch::setup::advance`]), and calls [`switch::transfer::send`] if that is the SAN.
//! 2. [`session`] says how the byte may travel: in a message if there is credit for one, else in the send buffer or by
//!    RDMA.
//! 3. `switch/stream` copies it to the segment and publishes it.
//! 4. If the peer's select counter says that somebody sleeps, a ring wakes them: the *bell* of the connection.
//! 5. The peer wakes in `switch/waiting` or [`switch::epoll`], and [`switch::transfer::receive`] copies the byte out.
//!
//! Over a fabric each end has a segment of its own. A link plays the peer's part in it: it sends what this end
//! publishes, and publishes what arrives.
//!
//! # Who is responsible for what
//!
//! Each module uses only those below it.
//!
//! | module | does | must not |
//! | --- | --- | --- |
//! | [`switch`] | sockets with TCP's meaning: set-up, transfer, readiness, the way back | know a provider's objects |
//! | [`fabric`] | links between hosts over a provider's queue pairs | know sockets or the program's descriptors |
//! | [`label`] | which library a file is | load it |
//! | [`registry`] | what a process publishes of its connections, written and read | know what a connection does |
//! | [`provider`] | moves bytes: shared memory, the provider interface, a simulation | know sockets, or when to send |
//! | [`proof`] | shows two processes that they have one connection | know how they say it to each other |
//! | [`session`] | the protocol: credits, sequence numbers, select counters | call the kernel, allocate, lock |
//! | [`logging`] | the log | decide what is worth a line, make anybody wait |
//! | [`config`] | the variables and the rules file, read once | act on any of it |
//! | [`reason`] | why a connection is where it is, in words | decide anything |
//! | [`sys`] | raw system calls, locks between processes, time | call a libc function that the library hooks |
//!
//! # Who uses it
//!
//! - The library, `shim`: [`config::Config::load`], [`logging::initialize`] and [`switch::initialize`] once. Then the
//!   calls of [`switch`], one for each of libc's, and [`sys`] for what is the kernel's.
//! - `sanctl`: [`registry`] and [`reason`] for `status`, [`label`] for `run`, [`fabric::call`] for
//!   `detach`, and [`provider::BUILT_IN`] for `providers`.
//! - A provider in a library of its own, such as `verbs`: [`provider::interface`], and parts of
//!   [`provider::software`].
//! - Tests and benchmarks: [`session`] and [`provider`].
//!
//! Nothing else is exported.

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "headers tell maintainers of their parts: with --document-private-items the links lead there"
)]

pub mod config;
pub mod fabric;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod label;
pub mod logging;
pub(crate) mod proof;
pub mod provider;
pub mod reason;
pub mod registry;
pub mod session;
pub mod switch;
pub mod sys;
