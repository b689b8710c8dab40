//! The conformance suite of the provider interface and its objects (N1): every case runs against every provider, through
//! the C table.
//!
//! Both ends are in this process; what only two processes can show is in [`processes`]. The cases of `verbs` need an RDMA device: they are ignored unless asked for, as
//! `scripts/test --rdma` does inside the RDMA guest.

mod buffer;
mod connections;
mod errors;
mod faults;
mod messages;
mod processes;
mod remote_memory;
mod side;

use sanshim_core::provider::interface::library::Library;
use sanshim_core::provider::interface::Limits;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

/// A provider under test, and two of its addresses that reach each other.
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) library: Arc<Library>,
    pub(crate) here: SocketAddr,
    pub(crate) there: SocketAddr,
}

/// What a device may lack.
#[derive(Clone, Copy)]
pub(crate) enum Trait {
    /// It makes memory reachable for RDMA of one peer alone.
    Binds,
    /// A message waits for a receive that is posted later (A1).
    Holds,
    /// Writes can tell of themselves.
    Tells,
}

impl Setting {
    /// Runs a case that needs this. Without it the case shows nothing.
    pub(crate) fn run_with(&self, needed: Trait, case: fn(&Setting)) {
        if self.has(needed) {
            case(self);
        }
    }

    /// True if the adapter says that it has this.
    pub(crate) fn has(&self, wanted: Trait) -> bool {
        let flags = self.adapters().0.query().flags;
        match wanted {
            Trait::Binds => flags & Limits::BIND != 0,
            Trait::Tells => flags & Limits::TELLS != 0,
            Trait::Holds => flags & Limits::UNHELD == 0,
        }
    }
}

/// Two addresses of this host.
fn shm() -> Setting {
    let library = Library::built_in::<sanshim_core::provider::SharedMemory>();
    let (here, there) = ("127.0.0.1:0".parse().unwrap(), "127.0.0.2:0".parse().unwrap());
    Setting { name: "shm", library, here, there }
}

/// Fresh addresses for every test.
fn simulation() -> Setting {
    static NEXT: AtomicU8 = AtomicU8::new(2);
    let next = NEXT.fetch_add(2, Ordering::Relaxed);
    let ip = |last| SocketAddr::from((Ipv4Addr::new(198, 51, 100, last), 0));
    let library = Library::built_in::<sanshim_core::provider::simulation::Simulation>();
    Setting { name: "simulation", library, here: ip(next), there: ip(next + 1) }
}

fn verbs_library() -> Arc<Library> {
    let path = std::env::var_os("SANSHIM_VERBS_LIBRARY").map(PathBuf::from);
    let path = path.expect("SANSHIM_VERBS_LIBRARY names libsanshim_verbs.so");
    Library::load(&path).expect("the library loads")
}

/// The two hosts of scripts/rdma-guest.
fn verbs() -> Setting {
    let (here, there) = ("10.77.0.1:0".parse().unwrap(), "10.77.0.2:0".parse().unwrap());
    Setting { name: "verbs", library: verbs_library(), here, there }
}

/// Makes one test of each case for each provider. Behind a semicolon stand cases that need what a device may lack.
macro_rules! suite {
    ($($case:ident)* $(; $needed:ident: $($of_some:ident)*)*) => {
        mod simulation {
            $(#[test] fn $case() { super::$case(&crate::simulation()); })*
            $($(#[test] fn $of_some() {
                crate::simulation().run_with(crate::Trait::$needed, super::$of_some);
            })*)*
        }
        mod shm {
            $(#[test] fn $case() { super::$case(&crate::shm()); })*
            $($(#[test] fn $of_some() {
                crate::shm().run_with(crate::Trait::$needed, super::$of_some);
            })*)*
        }
        mod verbs {
            $(#[test] #[ignore = "needs an RDMA device: scripts/test --rdma"]
            fn $case() { super::$case(&crate::verbs()); })*
            $($(#[test] #[ignore = "needs an RDMA device: scripts/test --rdma"]
            fn $of_some() {
                crate::verbs().run_with(crate::Trait::$needed, super::$of_some);
            })*)*
        }
    };
}
pub(crate) use suite;
