//! The provider: which addresses have an RDMA device.

use crate::adapter::Adapter;
use crate::device::{self, Device};
use crate::fork;
use sanshim_core::provider::interface::abi;
use sanshim_core::provider::interface::{implement, Error, Info, Result};
use std::net::SocketAddr;
use std::ptr;

pub(crate) struct Verbs;

impl implement::Provider for Verbs {
    type Adapter = Adapter;

    fn open() -> Result<Self> {
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

    fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let mut found: Vec<SocketAddr> = local_addresses()?;
        found.retain(|&address| device::serves(address));
        Ok(found)
    }

    fn open_adapter(&self, local: SocketAddr) -> Result<Adapter> {
        Ok(Adapter(Device::open(local)?))
    }

    fn can_unload() -> bool {
        // librdmacm keeps a device table that it never frees: once in, it stays.
        false
    }
}

/// The addresses of this host's interfaces, ports zero, each once.
fn local_addresses() -> Result<Vec<SocketAddr>> {
    let mut list = ptr::null_mut();
    // SAFETY: a place for the list.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(Error::InsufficientResources);
    }
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: an entry of the list.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: every socket address begins with its family.
        let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
        let size = match family {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => continue,
        };
        let mut address = abi::to_c(([0, 0, 0, 0], 0).into());
        // SAFETY: the address has `size` bytes, which a sockaddr_storage holds.
        unsafe {
            ptr::copy_nonoverlapping(entry.ifa_addr.cast::<u8>(), (&raw mut address).cast(), size)
        };
        let address = abi::from_c(&address)?;
        if !found.contains(&address) {
            found.push(address);
        }
    }
    // SAFETY: the list that getifaddrs made.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}
