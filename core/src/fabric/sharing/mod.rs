//! Processes that share a link: what one of them does that has no control of it, or wants it.
//!
//! - [`using`]: what the program's threads call, in whichever process
//! - [`wishes`]: who asks for control
//! - [`invitations`]: this process's own listeners, where peers come to that it asked for
//!
//! May open adapters. Must not make links.

pub(super) mod invitations;
mod using;
mod wishes;
