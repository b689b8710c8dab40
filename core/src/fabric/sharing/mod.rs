//! Processes that share a link: what one of them does that has no control of it, or wants control.
//!
//! - [`using`]: what the program's threads call, in whichever process
//! - [`wishes`]: which processes ask for control
//! - [`invitations`]: this process's own listeners, where invited peers come
//!
//! This room may open adapters. It makes no links.

pub(super) mod invitations;
mod using;
mod wishes;
