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
//! - bookkeeping: [`table`], [`socket`], [`spare`], [`structure`], [`lifecycle`], [`memory`], [`unseen`], [`options`]

mod adopt;
pub mod arrival;
mod away;
mod bell;
pub mod buffers;
mod control;
mod crowded;
mod detach;
pub mod endpoint;
pub mod epoll;
pub mod exec;
mod far;
pub mod files;
pub mod from_outside;
mod gather;
pub mod image;
mod lanes;
pub mod lifecycle;
mod manifest;
pub mod memory;
mod native;
pub mod options;
pub mod passing;
mod patience;
mod policy;
pub mod poll;
mod rdma;
mod readiness;
mod remains;
mod request;
mod resend;
pub mod setup;
pub mod shutdown;
mod sleepers;
pub mod socket;
mod spare;
mod spin;
mod stand_in;
mod stream;
mod structure;
mod suspend;
pub mod table;
pub mod transfer;
#[cfg(test)]
mod transfer_tests;
pub mod trust;
mod turn;
pub mod unseen;
mod urgent;
mod wait;

/// What the fabric's tests make ends of.
#[cfg(test)]
pub(crate) mod test_ends {
    pub(crate) use super::buffers::Buffers;
    pub(crate) use super::memory::Memory;
    pub(crate) use super::stream::{Stream, Take};
}

use crate::config::{program_name, Config};
use crate::fabric;
use crate::registry::Registry;
pub use crate::sys::process::is_borrowed;
use crate::sys::process::owner;
use crate::sys::{process, Errno, Fd};
use socket::phase;
pub use stream::before_jump;
use structure::Structure;
use table::Pinned;

/// What became of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not ours: the kernel does it.
    Pass,
    /// Done here, with the kernel's kind of result.
    Done(Result<usize, Errno>),
}

/// Longest spin (ns) unless the configuration says otherwise.
const SPIN: u64 = 50_000;

/// True if the switch has to be started: the configuration wants it, or the image before this one
/// left sockets that are on the SAN, or over which such may come.
pub fn is_wanted(config: &Config) -> bool {
    config.enabled || adopt::Inheritance::is_there() || trust::inherits_any()
}

/// Starts the switch. Until then, and without it, every call passes.
pub fn initialize(config: Config) -> Result<(), Errno> {
    let enabled = config.enabled;
    let inheritance = adopt::Inheritance::find();
    if !enabled && inheritance.is_none() && !trust::inherits_any() {
        return Ok(());
    }
    process::note_owner();
    spin::initialize(config.shm.spin_microseconds.map_or(SPIN, |us| u64::from(us) * 1000));
    if config.providers.objects {
        fabric::enable(fabric::Source::SharedMemory, away::AWAY);
    } else if config.providers.verbs {
        fabric::enable(fabric::Source::Library, away::AWAY);
    }
    setup::initialize(config.shm.move_after);
    policy::initialize(config);
    match Registry::open(&program_name()) {
        Ok(registry) => Structure::lock().registry = Some(registry),
        Err(e) => log::warn!("this process is not published: {e}"),
    }
    table::initialize()?;
    if let Some(inheritance) = inheritance {
        inheritance.adopt();
    }
    Ok(())
}

/// The socket behind `fd` if it was connecting: moved on if TCP has finished, and returned if it
/// is on the SAN now.
pub fn connecting(fd: Fd) -> Option<Pinned> {
    let socket = table::socket(fd)?;
    if socket.phase() != phase::CONNECTING {
        return None;
    }
    setup::establish(socket.get());
    (socket.phase() == phase::SAN).then_some(socket)
}
