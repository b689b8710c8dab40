//! The provider: which addresses have an RDMA device.

use crate::adapter::Adapter;
use crate::device::{self, Device};
use crate::fork;
use sanshim_core::provider::interface::{implement, routing, Info, ProviderResult};
use std::net::SocketAddr;

pub(crate) struct Verbs;

impl implement::ProviderObject for Verbs {
    type Adapter = Adapter;

    fn open() -> ProviderResult<Self> {
        fork::prepare();
        Ok(Verbs)
    }

    fn query() -> Info {
        Info::new("verbs", env!("CARGO_PKG_VERSION"), Info::IPV4 | Info::IPV6)
    }

    fn unusable() -> Option<String> {
        let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
        if devices == 0 {
            return Some(
                "this host has no RDMA device; for one in software load the kernel's \
                         rdma_rxe and add it to a network interface with 'rdma link add'"
                    .into(),
            );
        }
        if std::fs::metadata("/dev/infiniband/rdma_cm").is_err() {
            return Some(
                "/dev/infiniband/rdma_cm is missing: load the kernel module rdma_ucm".into(),
            );
        }
        None
    }

    fn addresses(&self) -> ProviderResult<Vec<SocketAddr>> {
        let mut found: Vec<SocketAddr> = routing::local_addresses()?;
        found.retain(|&address| device::serves(address));
        Ok(found)
    }

    fn open_adapter(&self, local: SocketAddr) -> ProviderResult<Adapter> {
        Ok(Adapter(Device::open(local)?))
    }

    fn can_unload() -> bool {
        // Once loaded, the library stays, because librdmacm never frees its table of devices.
        false
    }
}
