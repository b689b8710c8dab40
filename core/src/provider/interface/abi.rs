//! The C table through which a client uses every provider, and conversions of what crosses the table.
//!
//! This file is the twin of include/sanshim_provider.h. A status is 0 (done), 1 (pending) or an error's number negated.
//! Handles are the provider's own, and `close_*` ends each. No panic unwinds through the table.

use super::error::{Error, ProviderResult};
use super::types::*;
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The name under which a library gives its table: a function of type [`EntryPoint`].
pub const ENTRY: &std::ffi::CStr = c"sanshim_provider";

/// Gives the table, or null if the library does not speak `version`.
pub type EntryPoint = unsafe extern "C" fn(version: u32) -> *const ProviderTable;

/// An object of the provider's.
pub type Handle = *mut c_void;

/// An IP address and port as the C library has them.
pub type AbiAddress = libc::sockaddr_storage;

type Status = i32;

/// Functions of a provider. None is null.
#[repr(C)]
#[allow(missing_docs, reason = "each is the function of its name in `implement`")]
pub struct ProviderTable {
    /// Bytes of this table, at least `size_of::<Table>()`.
    pub size: u32,
    /// [`VERSION`].
    pub version: u32,

    pub query: unsafe extern "C" fn(*mut Info),
    /// Writes why the provider is not usable, ended by a zero; nothing (0) if it is.
    pub unusable: unsafe extern "C" fn(*mut c_char, u32) -> Status,
    pub can_unload: unsafe extern "C" fn() -> Status,
    pub open: unsafe extern "C" fn(*mut Handle) -> Status,
    pub close_provider: unsafe extern "C" fn(Handle),
    /// Writes at most as many as the count says and sets the count to how many there are.
    pub addresses: unsafe extern "C" fn(Handle, *mut AbiAddress, *mut u32) -> Status,
    pub open_adapter: unsafe extern "C" fn(Handle, *const AbiAddress, *mut Handle) -> Status,

    pub close_adapter: unsafe extern "C" fn(Handle),
    pub query_adapter: unsafe extern "C" fn(Handle, *mut Limits),
    pub create_completion_queue: unsafe extern "C" fn(Handle, u32, *mut Handle) -> Status,
    pub create_memory_region: unsafe extern "C" fn(Handle, *mut Handle) -> Status,
    pub create_shared_receive_queue: unsafe extern "C" fn(Handle, u32, *mut Handle) -> Status,
    /// Adapter, attributes, receive queue, initiator queue, shared receive queue or null.
    pub create_queue_pair: unsafe extern "C" fn(
        Handle,
        *const QueuePairAttributes,
        Handle,
        Handle,
        Handle,
        *mut Handle,
    ) -> Status,
    pub create_connector: unsafe extern "C" fn(Handle, *mut Handle) -> Status,
    pub create_listener: unsafe extern "C" fn(Handle, *mut Handle) -> Status,

    pub completion_queue: OverlappedTable,
    pub close_completion_queue: unsafe extern "C" fn(Handle),
    /// Returns how many results it wrote, or a negative status.
    pub get_results: unsafe extern "C" fn(Handle, *mut Completion, u32) -> Status,
    pub notify: unsafe extern "C" fn(Handle, u64) -> Status,

    pub close_memory_region: unsafe extern "C" fn(Handle),
    pub register_memory: unsafe extern "C" fn(Handle, *mut c_void, u64) -> Status,
    pub deregister_memory: unsafe extern "C" fn(Handle) -> Status,
    pub local_token: unsafe extern "C" fn(Handle, *mut u32) -> Status,

    pub close_shared_receive_queue: unsafe extern "C" fn(Handle),
    pub receive_shared: unsafe extern "C" fn(Handle, u64, *const MemoryPiece, u32) -> Status,

    pub close_queue_pair: unsafe extern "C" fn(Handle),
    pub send: unsafe extern "C" fn(Handle, u64, *const MemoryPiece, u32, u32) -> Status,
    pub send_inline: unsafe extern "C" fn(Handle, u64, *const c_void, u32, u32) -> Status,
    pub receive: unsafe extern "C" fn(Handle, u64, *const MemoryPiece, u32) -> Status,
    pub read: unsafe extern "C" fn(
        Handle,
        u64,
        *const MemoryPiece,
        u32,
        *const RemoteMemory,
        u32,
    ) -> Status,
    pub write: unsafe extern "C" fn(
        Handle,
        u64,
        *const MemoryPiece,
        u32,
        *const RemoteMemory,
        u32,
    ) -> Status,
    /// Queue pair, request, region, address, length, access, flags, token.
    pub bind: unsafe extern "C" fn(Handle, u64, Handle, u64, u64, u32, u32, *mut u32) -> Status,
    pub invalidate: unsafe extern "C" fn(Handle, u64, u32, u32) -> Status,
    pub flush: unsafe extern "C" fn(Handle) -> Status,

    pub connector: OverlappedTable,
    pub close_connector: unsafe extern "C" fn(Handle),
    pub bind_connector: unsafe extern "C" fn(Handle, *const AbiAddress) -> Status,
    /// Connector, queue pair, peer, private data, its length, request.
    pub connect:
        unsafe extern "C" fn(Handle, Handle, *const AbiAddress, *const c_void, u32, u64) -> Status,
    pub complete_connect: unsafe extern "C" fn(Handle, u64) -> Status,
    pub accept: unsafe extern "C" fn(Handle, Handle, *const c_void, u32, u64) -> Status,
    pub reject: unsafe extern "C" fn(Handle, *const c_void, u32) -> Status,
    /// Returns how many bytes it wrote, or a negative status.
    pub private_data: unsafe extern "C" fn(Handle, *mut c_void, u32) -> Status,
    pub local_address: unsafe extern "C" fn(Handle, *mut AbiAddress) -> Status,
    pub peer_address: unsafe extern "C" fn(Handle, *mut AbiAddress) -> Status,
    pub notify_disconnect: unsafe extern "C" fn(Handle, u64) -> Status,
    pub disconnect: unsafe extern "C" fn(Handle, u64) -> Status,

    pub listener: OverlappedTable,
    pub close_listener: unsafe extern "C" fn(Handle),
    pub bind_listener: unsafe extern "C" fn(Handle, *const AbiAddress) -> Status,
    pub listen: unsafe extern "C" fn(Handle, u32) -> Status,
    pub listener_address: unsafe extern "C" fn(Handle, *mut AbiAddress) -> Status,
    pub get_connection_request: unsafe extern "C" fn(Handle, Handle, u64) -> Status,
}

/// Functions that objects with asynchronous operations share.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "each is the function of its name in `implement`")]
pub struct OverlappedTable {
    pub descriptor: unsafe extern "C" fn(Handle) -> i32,
    /// Returns 1 and sets the request and its status, or 0 if nothing was reported.
    pub next_result: unsafe extern "C" fn(Handle, *mut u64, *mut Status) -> Status,
    pub cancel: unsafe extern "C" fn(Handle),
}

/// A status that has nothing to say beside success.
pub fn done(status: Status) -> ProviderResult<()> {
    count(status).map(drop)
}

/// A status that is a count.
pub fn count(status: Status) -> ProviderResult<usize> {
    usize::try_from(status).map_err(|_| Error::from_code(status.wrapping_neg()))
}

/// The status of an operation that may be pending.
pub fn started(status: Status) -> ProviderResult<Started> {
    Ok(if count(status)? == 0 { Started::Done } else { Started::Pending })
}

/// The status for a result.
pub fn status<T>(result: ProviderResult<T>) -> Status {
    match result {
        Ok(_) => 0,
        Err(error) => -(error as i32),
    }
}

/// The C library's form of an address.
pub fn to_c(address: SocketAddr) -> AbiAddress {
    let mut storage = MaybeUninit::<AbiAddress>::zeroed();
    match address {
        SocketAddr::V4(a) => {
            let c = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage holds every socket address.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in>().write(c) };
        }
        SocketAddr::V6(a) => {
            let c = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: a.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            // SAFETY: as above.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in6>().write(c) };
        }
    }
    // SAFETY: plain data, zeroed before.
    unsafe { storage.assume_init() }
}

/// The address from its C form; another family is an error.
pub fn from_c(address: &AbiAddress) -> ProviderResult<SocketAddr> {
    let at: *const AbiAddress = address;
    match i32::from(address.ss_family) {
        libc::AF_INET => {
            // SAFETY: a sockaddr_storage is large and aligned enough for every socket address.
            let c = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(c.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::new(ip.into(), u16::from_be(c.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let c = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            let (ip, port) = (Ipv6Addr::from(c.sin6_addr.s6_addr), u16::from_be(c.sin6_port));
            Ok(SocketAddrV6::new(ip, port, c.sin6_flowinfo, c.sin6_scope_id).into())
        }
        _ => Err(Error::InvalidParameter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_c_form() {
        for text in ["10.77.0.1:80", "[fd77::1]:443", "0.0.0.0:0", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_c(&to_c(address)), Ok(address));
        }
    }
}
