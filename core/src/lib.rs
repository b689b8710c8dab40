//! Core of sanshim: the switch, the session protocol and the providers.
//!
//! Layers, top to bottom; each knows only those below it:
//!
//! - [`switch`]: a program's sockets, set-up, transfer, readiness, sharing over fork.
//! - [`session`]: the session protocol (credits, sequence numbers, select counters), no I/O.
//! - [`fabric`]: connections over a provider's queue pairs, to peers that share no memory.
//! - [`provider`]: what carries messages: shared memory, and the interface to others.
//! - [`sys`]: raw system calls, which the shim's own hooks can never catch.
//!
//! Beside them: [`registry`] (what `sanctl` reads), [`config`], [`reason`], [`logging`], and
//! [`executable`] (what programs load the library), [`label`] (which library it is).

pub mod config;
pub mod executable;
pub mod fabric;
pub mod label;
pub mod logging;
pub mod provider;
pub mod reason;
pub mod registry;
pub mod session;
pub mod switch;
pub mod sys;
