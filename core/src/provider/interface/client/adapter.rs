//! Provider and adapter: where everything else is made.

use super::super::abi::{self, Handle};
use super::super::error::ProviderResult;
use super::super::library::Library;
use super::super::types::*;
use super::owned::Owned;
use super::*;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// An open provider (N2).
#[derive(Clone)]
pub struct Provider {
    object: Arc<Owned>,
}

impl Provider {
    /// Opens it; it may be open several times.
    pub fn open(library: &Arc<Library>) -> ProviderResult<Self> {
        let table = library.table();
        let object = Owned::make(library, &[], table.close_provider, |into| {
            // SAFETY: `into` is valid.
            unsafe { (table.open)(into) }
        })?;
        Ok(Provider { object })
    }

    /// The local addresses it serves at the moment, ports zero (N3).
    pub fn addresses(&self) -> ProviderResult<Vec<SocketAddr>> {
        let mut room = 32u32;
        loop {
            let mut found = vec![abi::to_c(([0, 0, 0, 0], 0).into()); room as usize];
            let mut count = room;
            // SAFETY: the vector has `count` entries.
            abi::done(unsafe {
                (self.object.table().addresses)(
                    self.object.handle(),
                    found.as_mut_ptr(),
                    &mut count,
                )
            })?;
            if count <= room {
                return found[..count as usize].iter().map(abi::from_c).collect();
            }
            room = count;
        }
    }

    /// Opens the adapter that serves a local address; its port is ignored (N3).
    pub fn open_adapter(&self, local: SocketAddr) -> ProviderResult<Adapter> {
        let (table, local) = (self.object.table(), abi::to_c(local));
        let library = self.object.library();
        let object = Owned::make(library, &[&self.object], table.close_adapter, |into| {
            // SAFETY: a live handle; both pointers are valid.
            unsafe { (table.open_adapter)(self.object.handle(), &local, into) }
        })?;
        Ok(Adapter { object })
    }
}

/// An open adapter: one device with one local address.
#[derive(Clone)]
pub struct Adapter {
    object: Arc<Owned>,
}

impl Adapter {
    /// What the device can do.
    pub fn query(&self) -> Limits {
        let mut limits = Limits::default();
        // SAFETY: a live handle and a valid place.
        unsafe { (self.object.table().query_adapter)(self.object.handle(), &mut limits) };
        limits
    }

    fn make(
        &self,
        close: unsafe extern "C" fn(Handle),
        make: impl FnOnce(Handle, *mut Handle) -> i32,
    ) -> ProviderResult<Arc<Owned>> {
        let library = self.object.library();
        Owned::make(library, &[&self.object], close, |into| make(self.object.handle(), into))
    }

    /// A queue of at most `depth` results.
    pub fn create_completion_queue(&self, depth: u32) -> ProviderResult<CompletionQueue> {
        let table = self.object.table();
        // SAFETY: a live handle and a valid place; so below.
        let object = self.make(table.close_completion_queue, |adapter, into| unsafe {
            (table.create_completion_queue)(adapter, depth, into)
        })?;
        Ok(CompletionQueue { object })
    }

    /// A region without memory.
    pub fn create_memory_region(&self) -> ProviderResult<MemoryRegion> {
        let table = self.object.table();
        // SAFETY: as above.
        let object = self.make(table.close_memory_region, |adapter, into| unsafe {
            (table.create_memory_region)(adapter, into)
        })?;
        Ok(MemoryRegion { object })
    }

    /// A queue of at most `depth` receives that several queue pairs share.
    pub fn create_shared_receive_queue(&self, depth: u32) -> ProviderResult<SharedReceiveQueue> {
        let table = self.object.table();
        // SAFETY: as above.
        let object = self.make(table.close_shared_receive_queue, |adapter, into| unsafe {
            (table.create_shared_receive_queue)(adapter, depth, into)
        })?;
        Ok(SharedReceiveQueue { object })
    }

    /// A queue pair. Results of receives go to one completion queue, all others to another, which
    /// may be the same.
    pub fn create_queue_pair(
        &self,
        attributes: &QueuePairAttributes,
        receive: &CompletionQueue,
        initiator: &CompletionQueue,
        shared: Option<&SharedReceiveQueue>,
    ) -> ProviderResult<QueuePair> {
        receive.object.check_made_by(&self.object)?;
        initiator.object.check_made_by(&self.object)?;
        let mut parents = vec![&self.object, &receive.object, &initiator.object];
        if let Some(shared) = shared {
            shared.object.check_made_by(&self.object)?;
            parents.push(&shared.object);
        }
        let table = self.object.table();
        let shared = shared.map_or(std::ptr::null_mut(), |shared| shared.object.handle());
        let library = self.object.library();
        let object = Owned::make(library, &parents, table.close_queue_pair, |into| {
            let (receive, initiator) = (receive.object.handle(), initiator.object.handle());
            // SAFETY: live handles of one adapter (checked), valid pointers.
            unsafe {
                let adapter = self.object.handle();
                (table.create_queue_pair)(adapter, attributes, receive, initiator, shared, into)
            }
        })?;
        Ok(QueuePair { object })
    }

    /// An end of a connection to be.
    pub fn create_connector(&self) -> ProviderResult<Connector> {
        let table = self.object.table();
        // SAFETY: as above.
        let object = self.make(table.close_connector, |adapter, into| unsafe {
            (table.create_connector)(adapter, into)
        })?;
        Ok(Connector { object, queue_pair: Arc::new(Mutex::new(None)) })
    }

    /// A listener to be.
    pub fn create_listener(&self) -> ProviderResult<Listener> {
        let table = self.object.table();
        // SAFETY: as above.
        let object = self.make(table.close_listener, |adapter, into| unsafe {
            (table.create_listener)(adapter, into)
        })?;
        Ok(Listener { object, awaiting: Arc::new(Mutex::new(None)) })
    }
}
