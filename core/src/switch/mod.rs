//! The switch decides for each of a program's sockets whether its bytes go over the SAN, and carries them there with
//! TCP's semantics.
//!
//! The program's descriptor is always a kernel TCP socket, the anchor. The files of this folder are the ground. Its
//! folders are rooms on floors: each may call what lies below it, and its `mod.rs` says what it is for.
//! docs/architecture.md has them in order. From the top:
//!
//! - `fork`, a file: what becomes of everything in a child, and at the exit
//! - `descriptors`: calls that make, copy, set and close sockets
//! - `handing_on`: connections that go to another program or process (exec, messages)
//! - `readiness`: poll, select and epoll; `transfer`: send and receive
//! - `setup`: how a connection comes to the SAN; `back_to_tcp`: how it leaves
//! - `waiting`: sleeping and waking; `anchor`: what goes over the kernel's socket of a connection on the SAN
//! - `socket`: what is known of a descriptor; `stream`: both directions of a connection; `endpoint`: their shared state

mod anchor;
mod back_to_tcp;
mod bit_sets;
pub mod buffers;
mod descriptors;
mod endpoint;
mod event_bits;
pub mod fork;
mod handing_on;
mod option_table;
mod outcome;
mod policy;
mod readiness;
pub mod setup;
mod socket;
mod spin;
mod stream;
pub mod transfer;
mod waiting;

pub use bit_sets::BitSets;
pub use descriptors::accept::{accepted, listening};
pub use descriptors::connect::connect;
pub use descriptors::{lifecycle, options, sets};
pub use handing_on::{bring_back, exec, passing};
pub use outcome::Outcome;
pub use readiness::{epoll, poll, select};
pub use socket::lane::Lane;
pub use socket::{table, unpublished};
pub use transfer::{files, shutdown};

use crate::config::{program_name, Config};
use crate::fabric;
use crate::registry::Registry;
pub use crate::sys::process::is_borrowed;
use crate::sys::{hidden, process, Errno};
use socket::structure::Structure;
use socket::REGISTRY;
pub use stream::before_jump;

/// Starts the switch. Until then, and without it, every call passes.
pub fn initialize(config: Config) -> Result<(), Errno> {
    process::note_owner();
    hidden::make_room();
    spin::initialize(u64::from(config.spin_microseconds) * 1000);
    if config.providers.objects {
        fabric::enable(fabric::Source::SharedMemory, back_to_tcp::helper_calls::CALLS);
    } else if config.providers.verbs {
        fabric::enable(fabric::Source::Library, back_to_tcp::helper_calls::CALLS);
    }
    socket::traffic::initialize(config.move_after);
    policy::initialize(config);
    let _ = socket::pool::END_AFTER_LAST_CALL.set(descriptors::lifecycle::end_after_last_call);
    match Registry::open(&program_name()) {
        Ok(registry) => {
            *REGISTRY.get(&mut Structure::lock()) = Some(registry);
            policy::publish_admission();
        }
        Err(e) => log::warn!("this process is not published: {e}"),
    }
    table::initialize()
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use stream::fuzz_words;

/// What the fabric's tests make ends of.
#[cfg(test)]
pub(crate) mod test_ends {
    pub(crate) use super::buffers::Buffers;
    pub(crate) use super::endpoint::memory::Memory;
    pub(crate) use super::stream::{Stream, Take};

    use super::anchor::ends;
    use super::socket::Socket;
    use crate::session::InEvent;
    use crate::sys::Fd;

    /// Looks what the kernel tells of the anchor of an end that asked how its return goes on, and has no answer.
    pub(crate) fn look_unanswered(anchor: Fd, stream: &Stream) {
        stream.endpoint.step_in(InEvent::Asked);
        ends::look(&Socket::loose(anchor), stream);
    }
}
