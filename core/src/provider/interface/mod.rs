//! The provider interface (N1–N4): what a system-area network offers to its clients.
//!
//! The objects are the source's: provider, adapter, completion queue, memory region, shared receive queue, queue pair,
//! connector, listener, and the base of all asynchronous operations. A provider implements the traits of [`implement`],
//! and a client uses the types of [`client`]. Between them lies only the C table of [`abi`], so a provider that is
//! built in and one loaded from a library are the same thing. docs/providers.md tells how to write one.
//!
//! Nothing here knows of sockets, sessions or credits, and nothing calls back into a client.

pub mod abi;
pub mod catalogue;
pub mod client;
pub mod error;
pub mod export;
pub mod implement;
pub mod library;
pub mod routing;
pub mod types;

pub use error::{Error, ProviderResult};
pub use types::*;
