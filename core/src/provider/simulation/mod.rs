//! The `simulation` provider: a fabric inside one process, for tests.
//!
//! Deterministic: everything happens inside the calls, under one lock, in the order of the calls;
//! there are no threads and no time. Any address of the documentation ranges (192.0.2.0/24,
//! 198.51.100.0/24, 2001:db8::/32) is an adapter, so that tests keep out of each other's way.
//! [`lose_link`] and [`remove_device`] are the faults.

mod connecting;
mod connection;
mod fabric;
mod objects;
mod pair;
mod requests;

pub use objects::Simulation;

use super::interface::Error;
use fabric::fabric;
use std::net::IpAddr;

/// Every queue pair of this address, and every peer's towards it, runs out of retries.
pub fn lose_link(ip: IpAddr) {
    let mut fabric = fabric();
    fabric.fail_pairs_of(ip, true, Error::TimedOut);
}

/// The device goes: its queue pairs are flushed and its connections end with
/// [`Error::DeviceRemoved`].
pub fn remove_device(ip: IpAddr) {
    let mut fabric = fabric();
    fabric.fail_pairs_of(ip, false, Error::Cancelled);
    fabric.end_connections_of(ip, Error::DeviceRemoved);
}
