//! The registry: what every process under the shim publishes about its connections, and how `sanctl` reads it without
//! stopping or slowing anybody.
//!
//! There is one file per process, `/dev/shm/sanshim-user-<euid>/<pid>`. Its name has `.<PID namespace>` behind the
//! number where that is not the initial one. The file has a header, a fixed table of connection slots, and a ring of
//! the last events. Its process maps it. Nobody else writes to it but `sanctl`, which only writes the words for
//! requests. The file is sparse, so an idle process costs two pages.
//!
//! This room is responsible for the file's layout, its life (creation, fork, removal) and its reading. It does not know
//! what a connection does. The writer runs inside somebody else's process, even in fork children of threaded programs.
//! So it calls no libc function that the shim hooks, and neither allocates nor locks.

mod admission;
mod closed;
mod container;
mod control;
mod counter;
mod current;
mod ends;
mod error;
mod event;
mod events;
mod file;
mod folder;
mod follow;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod kernel;
mod layout;
mod mounts;
mod numbers;
mod other_ends;
mod owner;
mod place;
mod process;
mod publisher;
mod quiet;
mod reader;
mod reading;
mod request;
mod slot;
mod sweep;
mod totals;
mod transfers;
mod translated;
mod writer;

#[cfg(test)]
mod tests;

pub use admission::Admitted;
pub use container::Container;
pub use control::{ControlStatus, DirectionControl};
pub use counter::{Counter, DirectionCounts, Gauge, SharedCounter};
pub use current::{count_return, publish};
pub(crate) use current::{
    note, publish_admission, publish_helper, requests, set_budget, set_reason, set_state,
};
pub use ends::Ends;
pub use error::RegistryError;
pub use event::Event;
pub use events::Noted;
pub(crate) use folder::each_published;
pub use follow::{Events, Follower};
pub(crate) use layout::VERSION as LAYOUT_VERSION;
pub use mounts::identity_of;
pub use numbers::share_namespace;
pub use owner::{owner_of, Owner};
pub use place::RegistryPlace;
pub use reader::{Connection, DirectionTraffic, Problem, Process, Snapshot};
pub use reading::{read_all, read_folder, read_published};
pub use request::{OnSan, Requests};
pub(crate) use slot::spare;
pub use slot::{Identity, Provider, Slot, State};
pub use totals::Totals;
pub use transfers::{TransferStatus, Transfers};
pub use translated::Translations;
pub use writer::Registry;
