//! Core of sanshim: the switch, the session protocol and the providers.
//!
//! Layers, top to bottom; each knows only those below it:
//!
//! - [`switch`]: a program's sockets, set-up, transfer, readiness, sharing over fork.
//! - [`session`]: the session protocol (credits, sequence numbers, select counters), no I/O.
//! - [`provider`]: what carries messages; here shared memory.
//! - [`sys`]: raw system calls, which the shim's own hooks can never catch.
//!
//! Beside them: [`registry`] (what `sanctl` reads), [`config`], [`reason`], [`logging`], and
//! [`executable`] (what programs load the library).

pub mod config;
pub mod executable;
pub mod logging;
pub mod provider;
pub mod reason;
pub mod registry;
pub mod session;
pub mod switch;
pub mod sys;
