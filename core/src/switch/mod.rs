//! The switch: decides for each of a program's sockets whether its bytes go over the SAN, and
//! carries them there with TCP's semantics.
//!
//! The program's descriptor is always a kernel TCP socket, the anchor (design 1). Modules:
//!
//! - set-up: [`setup`], [`lanes`], [`policy`], [`native`]
//! - transfer: [`transfer`] over [`stream`], [`control`], [`suspend`] and [`endpoint`]; [`buffers`], [`urgent`], [`files`]
//! - the way back to TCP: [`detach`], [`resend`], [`stand_in`], [`request`], [`from_outside`]
//! - readiness: [`wait`], [`bell`], [`spin`], [`readiness`], [`poll`], [`epoll`]
//! - other images of the process: [`exec`], [`image`], [`manifest`], [`adopt`], [`remains`]
//! - descriptors in messages: [`passing`], [`arrival`], [`crowded`], [`trust`]
//! - peers on other hosts: [`far`], [`away`]
//! - bookkeeping: [`table`], [`socket`], [`structure`], [`lifecycle`], [`memory`], [`options`]

mod anchor;
mod back_to_tcp;
pub mod buffers;
mod descriptors;
mod endpoint;
mod event_bits;
pub mod fork;
mod handing_on;
mod outcome;
mod policy;
mod readiness;
pub mod setup;
mod socket;
mod spin;
mod stream;
pub mod transfer;
mod waiting;

pub use back_to_tcp::from_outside;
pub use descriptors::accept::{accepted, listening};
pub use descriptors::connect::connect;
pub use descriptors::{lifecycle, options, sets};
pub use handing_on::{exec, give, passing};
pub use outcome::Outcome;
pub use readiness::{epoll, poll};
pub use setup::{connecting, serving};
pub use socket::{table, unseen};
pub use transfer::{files, shutdown};

use crate::config::{program_name, Config};
use crate::fabric;
use crate::registry::Registry;
pub use crate::sys::process::is_borrowed;
use crate::sys::{process, Errno};
use socket::structure::Structure;
use socket::REGISTRY;
pub use stream::before_jump;

/// Longest spin (ns) unless the configuration says otherwise.
const SPIN: u64 = 50_000;

/// Starts the switch. Until then, and without it, every call passes.
pub fn initialize(config: Config) -> Result<(), Errno> {
    process::note_owner();
    spin::initialize(config.shm.spin_microseconds.map_or(SPIN, |us| u64::from(us) * 1000));
    if config.providers.objects {
        fabric::enable(fabric::Source::SharedMemory, back_to_tcp::away::AWAY);
    } else if config.providers.verbs {
        fabric::enable(fabric::Source::Library, back_to_tcp::away::AWAY);
    }
    socket::traffic::initialize(config.shm.move_after);
    policy::initialize(config);
    match Registry::open(&program_name()) {
        Ok(registry) => *REGISTRY.get(&mut Structure::lock()) = Some(registry),
        Err(e) => log::warn!("this process is not published: {e}"),
    }
    table::initialize()
}

/// What the fabric's tests make ends of.
#[cfg(test)]
pub(crate) mod test_ends {
    pub(crate) use super::buffers::Buffers;
    pub(crate) use super::endpoint::memory::Memory;
    pub(crate) use super::stream::{Stream, Take};
}
