//! The provider's side: one trait for each object of the source.
//!
//! The rules hold for all of them. Any thread may call any of them at any time. Nothing blocks longer than a local
//! system call. Nothing calls the client. Nothing writes to standard output or error. The client closes (drops) an
//! object before the objects that it was made from.

use super::error::ProviderResult;
use super::types::*;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// A provider: the entry to its adapters.
pub trait ProviderObject: Send + Sync + Sized + 'static {
    /// Its adapters.
    type Adapter: AdapterObject;
    /// Opens it, cheaply; may be called several times. Fails where it is not usable.
    fn open() -> ProviderResult<Self>;
    /// Kind, version, address families.
    fn query() -> Info;
    /// Why it is not usable here, in a line with the remedy, if it is not.
    fn unusable() -> Option<String>;
    /// The local addresses it serves at the moment, ports zero (N3).
    fn addresses(&self) -> ProviderResult<Vec<SocketAddr>>;
    /// Opens the adapter that serves a local address; its port is ignored.
    fn open_adapter(&self, local: SocketAddr) -> ProviderResult<Self::Adapter>;
    /// Whether the library may be unloaded when nothing of it is open.
    fn can_unload() -> bool;
}

/// The base of objects with asynchronous operations (N4).
pub trait OverlappedObject: Send + Sync + 'static {
    /// Readable while a result waits to be fetched. Belongs to the object.
    fn descriptor(&self) -> RawFd;
    /// Fetches the result of a pending operation, if there is one. Never blocks.
    fn next_result(&self) -> Option<Reported>;
    /// Withdraws every pending operation; each is reported, cancelled or finished.
    fn cancel(&self);
}

/// An adapter: one device with one local address.
pub trait AdapterObject: Send + Sync + Sized + 'static {
    /// Its completion queues.
    type CompletionQueue: CompletionQueueObject;
    /// Its memory regions.
    type MemoryRegion: MemoryRegionObject;
    /// Its shared receive queues.
    type SharedReceiveQueue: SharedReceiveQueueObject;
    /// Its queue pairs.
    type QueuePair: QueuePairObject<MemoryRegion = Self::MemoryRegion>;
    /// Its connectors.
    type Connector: ConnectorObject<QueuePair = Self::QueuePair>;
    /// Its listeners.
    type Listener: ListenerObject<Connector = Self::Connector>;

    /// What it can do.
    fn query(&self) -> Limits;
    /// A queue of `depth` results.
    fn create_completion_queue(&self, depth: u32) -> ProviderResult<Self::CompletionQueue>;
    /// A region without memory.
    fn create_memory_region(&self) -> ProviderResult<Self::MemoryRegion>;
    /// A queue of `depth` receives for several queue pairs.
    fn create_shared_receive_queue(&self, depth: u32) -> ProviderResult<Self::SharedReceiveQueue>;
    /// A queue pair, with a receive queue of its own or a shared one.
    fn create_queue_pair(
        &self,
        attributes: &QueuePairAttributes,
        receive: &Self::CompletionQueue,
        initiator: &Self::CompletionQueue,
        shared: Option<&Self::SharedReceiveQueue>,
    ) -> ProviderResult<Self::QueuePair>;
    /// An end of a connection to be.
    fn create_connector(&self) -> ProviderResult<Self::Connector>;
    /// A listener to be.
    fn create_listener(&self) -> ProviderResult<Self::Listener>;
}

/// A completion queue. Its pending operation is the request for notification.
pub trait CompletionQueueObject: OverlappedObject {
    /// Takes results, oldest first; how many.
    fn get_results(&self, into: &mut [Completion]) -> ProviderResult<usize>;
    /// Asks to be told of the next result that is added. The client looks at the queue once more
    /// afterwards, since a result added before is not told. One request at a time.
    fn notify(&self, request: u64) -> ProviderResult<Started>;
}

/// A memory region: local memory that requests may name.
pub trait MemoryRegionObject: Send + Sync + 'static {
    /// Registers memory for local use (M1).
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable, until `deregister` returned.
    unsafe fn register(&self, address: *mut u8, length: usize) -> ProviderResult<()>;
    /// Ends it. No request touches the memory afterwards: those that name it fail. Memory that a peer can
    /// still reach may be refused.
    fn deregister(&self) -> ProviderResult<()>;
    /// The token for [`MemoryPiece::token`]; fails while nothing is registered.
    fn local_token(&self) -> ProviderResult<u32>;
}

/// A shared receive queue.
pub trait SharedReceiveQueueObject: Send + Sync + 'static {
    /// Posts a buffer for a message of any of its queue pairs.
    fn receive(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<()>;
}

/// A queue pair: where requests are posted. Each ends with an entry in a completion queue, in the
/// order of posting among the requests of the same direction, unless it is silent and succeeds.
pub trait QueuePairObject: Send + Sync + 'static {
    /// The adapter's regions.
    type MemoryRegion;
    /// Sends a message. One that comes before a receive is posted for it is held (A1).
    fn send(&self, request: u64, from: &[MemoryPiece], flags: Flags) -> ProviderResult<()>;
    /// Sends a small message. The call takes its bytes at once.
    fn send_inline(&self, request: u64, bytes: &[u8], flags: Flags) -> ProviderResult<()>;
    /// Posts a buffer for a message.
    fn receive(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<()>;
    /// RDMA read.
    fn read(
        &self,
        request: u64,
        into: &[MemoryPiece],
        from: RemoteMemory,
        flags: Flags,
    ) -> ProviderResult<()>;
    /// RDMA write.
    fn write(
        &self,
        request: u64,
        from: &[MemoryPiece],
        to: RemoteMemory,
        flags: Flags,
    ) -> ProviderResult<()>;
    /// Makes part of a region reachable for this queue pair's peer alone (M2, M3). A message sent
    /// afterwards may carry the token. [`Error::NotSupported`](super::Error::NotSupported) where this peer
    /// cannot be let in.
    fn bind(
        &self,
        request: u64,
        region: &Self::MemoryRegion,
        address: u64,
        length: u64,
        access: RemoteAccess,
        flags: Flags,
    ) -> ProviderResult<u32>;
    /// Ends what `bind` began. The peer reaches nothing once this has completed. With [`Flags::AT_ONCE`] it is no
    /// request: it may fail with [`Error::InsufficientResources`](super::Error::InsufficientResources) while an access
    /// is under way, and with any error where the bind has not completed or the device cannot do it.
    fn invalidate(&self, request: u64, token: u32, flags: Flags) -> ProviderResult<()>;
    /// Ends every outstanding request with [`Error::Cancelled`](super::Error::Cancelled); so ends
    /// what is posted afterwards, at once or as a completion.
    fn flush(&self) -> ProviderResult<()>;
}

/// A connector: makes and ends one connection. A provider without threads takes the steps of a
/// pending operation in `next_result`, so that the client must ask while it waits.
pub trait ConnectorObject: OverlappedObject {
    /// The adapter's queue pairs.
    type QueuePair;
    /// Chooses the local address; port 0 for any.
    fn bind(&self, local: SocketAddr) -> ProviderResult<()>;
    /// Asks a listener; pending until it answers. Then the answer's private data is there and the
    /// connection waits for `complete_connect`.
    fn connect(
        &self,
        queue_pair: &Self::QueuePair,
        peer: SocketAddr,
        private_data: &[u8],
        request: u64,
    ) -> ProviderResult<Started>;
    /// Establishes what `connect` agreed on.
    fn complete_connect(&self, request: u64) -> ProviderResult<Started>;
    /// Agrees to the request that a listener put here; pending until the peer completed it.
    fn accept(
        &self,
        queue_pair: &Self::QueuePair,
        private_data: &[u8],
        request: u64,
    ) -> ProviderResult<Started>;
    /// Refuses it.
    fn reject(&self, private_data: &[u8]) -> ProviderResult<()>;
    /// The bytes that came with the peer's request or answer: how many it copied, at most `into`'s length. Some fabrics
    /// pad them with zeros.
    fn private_data(&self, into: &mut [u8]) -> ProviderResult<usize>;
    /// This end's address.
    fn local_address(&self) -> ProviderResult<SocketAddr>;
    /// The other end's address.
    fn peer_address(&self) -> ProviderResult<SocketAddr>;
    /// Pending until the connection ends, whichever end ends it. Done at once if it has ended.
    fn notify_disconnect(&self, request: u64) -> ProviderResult<Started>;
    /// Ends the connection and flushes its queue pair.
    fn disconnect(&self, request: u64) -> ProviderResult<Started>;
}

/// A listener for connection requests.
pub trait ListenerObject: OverlappedObject {
    /// The adapter's connectors.
    type Connector: ConnectorObject;
    /// Chooses the local address; port 0 for any.
    fn bind(&self, local: SocketAddr) -> ProviderResult<()>;
    /// Starts to listen; `backlog` requests wait at most, the rest are refused.
    fn listen(&self, backlog: u32) -> ProviderResult<()>;
    /// The address, with its port.
    fn local_address(&self) -> ProviderResult<SocketAddr>;
    /// Puts the next connection request into an unused connector, which must outlive the pending
    /// operation; the client sees to that.
    fn get_connection_request(
        &self,
        connector: &Self::Connector,
        request: u64,
    ) -> ProviderResult<Started>;
}
