//! The C table of a provider written in Rust: every function turns handles and pointers back into the objects of
//! [`implement`](super::implement) and stops panics.
//!
//! The only way in is [`table`]. The safety of each function is the same: the client passes handles that this table
//! gave and that are not closed, and pointers that are valid for the call.
#![allow(clippy::undocumented_unsafe_blocks, reason = "one invariant, stated above")]

use super::abi::{self, status, AbiAddress, Handle, OverlappedTable as Functions, ProviderTable};
use super::error::{Error, ProviderResult};
use super::implement::*;
use super::types::*;
use std::ffi::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

type CompletionQueueOf<P> = <<P as ProviderObject>::Adapter as AdapterObject>::CompletionQueue;
type MemoryRegionOf<P> = <<P as ProviderObject>::Adapter as AdapterObject>::MemoryRegion;
type SharedReceiveQueueOf<P> =
    <<P as ProviderObject>::Adapter as AdapterObject>::SharedReceiveQueue;
type QueuePairOf<P> = <<P as ProviderObject>::Adapter as AdapterObject>::QueuePair;
type ConnectorOf<P> = <<P as ProviderObject>::Adapter as AdapterObject>::Connector;
type ListenerOf<P> = <<P as ProviderObject>::Adapter as AdapterObject>::Listener;

/// The table of provider `P`, for the life of the process (or of the library it is in).
pub const fn table<P: ProviderObject>() -> &'static ProviderTable {
    &Exported::<P>::TABLE
}

struct Exported<P>(std::marker::PhantomData<P>);

impl<P: ProviderObject> Exported<P> {
    const TABLE: ProviderTable = ProviderTable {
        size: size_of::<ProviderTable>() as u32,
        version: VERSION,
        query: query::<P>,
        unusable: unusable::<P>,
        can_unload: can_unload::<P>,
        open: open::<P>,
        close_provider: close::<P>,
        addresses: addresses::<P>,
        open_adapter: open_adapter::<P>,
        close_adapter: close::<P::Adapter>,
        query_adapter: query_adapter::<P>,
        create_completion_queue: create_completion_queue::<P>,
        create_memory_region: create_memory_region::<P>,
        create_shared_receive_queue: create_shared_receive_queue::<P>,
        create_queue_pair: create_queue_pair::<P>,
        create_connector: create_connector::<P>,
        create_listener: create_listener::<P>,
        completion_queue: overlapped::<CompletionQueueOf<P>>(),
        close_completion_queue: close::<CompletionQueueOf<P>>,
        get_results: get_results::<P>,
        notify: notify::<P>,
        close_memory_region: close::<MemoryRegionOf<P>>,
        register_memory: register_memory::<P>,
        deregister_memory: deregister_memory::<P>,
        local_token: local_token::<P>,
        close_shared_receive_queue: close::<SharedReceiveQueueOf<P>>,
        receive_shared: receive_shared::<P>,
        close_queue_pair: close::<QueuePairOf<P>>,
        send: send::<P>,
        send_inline: send_inline::<P>,
        receive: receive::<P>,
        read: read::<P>,
        write: write::<P>,
        bind: bind::<P>,
        invalidate: invalidate::<P>,
        flush: flush::<P>,
        connector: overlapped::<ConnectorOf<P>>(),
        close_connector: close::<ConnectorOf<P>>,
        bind_connector: bind_connector::<P>,
        connect: connect::<P>,
        complete_connect: complete_connect::<P>,
        accept: accept::<P>,
        reject: reject::<P>,
        private_data: private_data::<P>,
        local_address: local_address::<P>,
        peer_address: peer_address::<P>,
        notify_disconnect: notify_disconnect::<P>,
        disconnect: disconnect::<P>,
        listener: overlapped::<ListenerOf<P>>(),
        close_listener: close::<ListenerOf<P>>,
        bind_listener: bind_listener::<P>,
        listen: listen::<P>,
        listener_address: listener_address::<P>,
        get_connection_request: get_connection_request::<P>,
    };
}

const fn overlapped<T: OverlappedObject>() -> Functions {
    Functions { descriptor: descriptor::<T>, next_result: next_result::<T>, cancel: cancel::<T> }
}

/// Runs it; a panic is an internal error of the provider's, not the program's end.
fn guard(run: impl FnOnce() -> ProviderResult<i32>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(Error::Internal));
    result.unwrap_or_else(|error| -(error as i32))
}

fn begun(result: ProviderResult<Started>) -> ProviderResult<i32> {
    result.map(|started| match started {
        Started::Done => 0,
        Started::Pending => 1,
    })
}

// `T` is the type that this table made the handle of.
unsafe fn object<'a, T>(handle: Handle) -> &'a T {
    unsafe { &*handle.cast::<T>() }
}

unsafe fn list<'a, T>(at: *const T, count: u32) -> &'a [T] {
    match count {
        0 => &[],
        _ => unsafe { slice::from_raw_parts(at, count as usize) },
    }
}

unsafe fn hand_out<T>(into: *mut Handle, made: ProviderResult<T>) -> ProviderResult<i32> {
    let handle = Box::into_raw(Box::new(made?)).cast::<c_void>();
    unsafe { into.write(handle) };
    Ok(0)
}

unsafe extern "C" fn close<T>(handle: Handle) {
    guard(|| {
        drop(unsafe { Box::from_raw(handle.cast::<T>()) });
        Ok(0)
    });
}

unsafe extern "C" fn query<P: ProviderObject>(into: *mut Info) {
    unsafe { into.write(P::query()) };
}

unsafe extern "C" fn unusable<P: ProviderObject>(into: *mut c_char, size: u32) -> i32 {
    guard(|| {
        let text = P::unusable().unwrap_or_default();
        let length = text.len().min((size as usize).saturating_sub(1));
        if size > 0 {
            unsafe {
                into.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
                into.add(length).write(0);
            }
        }
        Ok(i32::from(!text.is_empty()))
    })
}

unsafe extern "C" fn can_unload<P: ProviderObject>() -> i32 {
    guard(|| Ok(i32::from(P::can_unload())))
}

unsafe extern "C" fn open<P: ProviderObject>(into: *mut Handle) -> i32 {
    guard(|| unsafe { hand_out(into, P::open()) })
}

unsafe extern "C" fn addresses<P: ProviderObject>(
    h: Handle,
    into: *mut AbiAddress,
    count: *mut u32,
) -> i32 {
    guard(|| {
        let found = unsafe { object::<P>(h) }.addresses()?;
        let room = unsafe { count.read() } as usize;
        for (i, &address) in found.iter().take(room).enumerate() {
            unsafe { into.add(i).write(abi::to_c(address)) };
        }
        unsafe { count.write(found.len() as u32) };
        Ok(0)
    })
}

unsafe extern "C" fn open_adapter<P: ProviderObject>(
    h: Handle,
    local: *const AbiAddress,
    into: *mut Handle,
) -> i32 {
    guard(|| unsafe { hand_out(into, object::<P>(h).open_adapter(abi::from_c(&*local)?)) })
}

unsafe extern "C" fn query_adapter<P: ProviderObject>(h: Handle, into: *mut Limits) {
    unsafe { into.write(object::<P::Adapter>(h).query()) };
}

macro_rules! create {
    ($($name:ident ($($argument:ident)?);)*) => {$(
        unsafe extern "C" fn $name<P: ProviderObject>(h: Handle, $($argument: u32,)? into: *mut Handle) -> i32 {
            guard(|| unsafe { hand_out(into, object::<P::Adapter>(h).$name($($argument)?)) })
        }
    )*};
}

create! {
    create_completion_queue(depth);
    create_memory_region();
    create_shared_receive_queue(depth);
    create_connector();
    create_listener();
}

unsafe extern "C" fn create_queue_pair<P: ProviderObject>(
    h: Handle,
    attributes: *const QueuePairAttributes,
    receive: Handle,
    initiator: Handle,
    shared: Handle,
    into: *mut Handle,
) -> i32 {
    guard(|| unsafe {
        let shared = (!shared.is_null()).then(|| object::<SharedReceiveQueueOf<P>>(shared));
        let adapter = object::<P::Adapter>(h);
        let made =
            adapter.create_queue_pair(&*attributes, object(receive), object(initiator), shared);
        hand_out(into, made)
    })
}

unsafe extern "C" fn descriptor<T: OverlappedObject>(h: Handle) -> i32 {
    unsafe { object::<T>(h) }.descriptor()
}

unsafe extern "C" fn next_result<T: OverlappedObject>(
    h: Handle,
    request: *mut u64,
    to: *mut i32,
) -> i32 {
    guard(|| {
        let Some(reported) = unsafe { object::<T>(h) }.next_result() else { return Ok(0) };
        unsafe {
            request.write(reported.request);
            to.write(status(reported.result));
        }
        Ok(1)
    })
}

unsafe extern "C" fn cancel<T: OverlappedObject>(h: Handle) {
    guard(|| {
        unsafe { object::<T>(h) }.cancel();
        Ok(0)
    });
}

unsafe extern "C" fn get_results<P: ProviderObject>(
    h: Handle,
    into: *mut Completion,
    room: u32,
) -> i32 {
    guard(|| unsafe {
        // The client's entries hold plain data, initialised or not to be read.
        let into = slice::from_raw_parts_mut(into, room as usize);
        object::<CompletionQueueOf<P>>(h).get_results(into).map(|n| n as i32)
    })
}

unsafe extern "C" fn notify<P: ProviderObject>(h: Handle, request: u64) -> i32 {
    guard(|| begun(unsafe { object::<CompletionQueueOf<P>>(h) }.notify(request)))
}

unsafe extern "C" fn register_memory<P: ProviderObject>(
    h: Handle,
    at: *mut c_void,
    length: u64,
) -> i32 {
    guard(|| unsafe {
        object::<MemoryRegionOf<P>>(h).register(at.cast(), length as usize).map(|()| 0)
    })
}

unsafe extern "C" fn deregister_memory<P: ProviderObject>(h: Handle) -> i32 {
    guard(|| unsafe { object::<MemoryRegionOf<P>>(h) }.deregister().map(|()| 0))
}

unsafe extern "C" fn local_token<P: ProviderObject>(h: Handle, into: *mut u32) -> i32 {
    guard(|| unsafe {
        into.write(object::<MemoryRegionOf<P>>(h).local_token()?);
        Ok(0)
    })
}

unsafe extern "C" fn receive_shared<P: ProviderObject>(
    h: Handle,
    r: u64,
    s: *const MemoryPiece,
    n: u32,
) -> i32 {
    guard(|| unsafe { object::<SharedReceiveQueueOf<P>>(h).receive(r, list(s, n)).map(|()| 0) })
}

unsafe extern "C" fn send<P: ProviderObject>(
    h: Handle,
    r: u64,
    s: *const MemoryPiece,
    n: u32,
    f: u32,
) -> i32 {
    guard(|| unsafe { object::<QueuePairOf<P>>(h).send(r, list(s, n), Flags(f)).map(|()| 0) })
}

unsafe extern "C" fn send_inline<P: ProviderObject>(
    h: Handle,
    r: u64,
    bytes: *const c_void,
    n: u32,
    f: u32,
) -> i32 {
    guard(|| unsafe {
        object::<QueuePairOf<P>>(h).send_inline(r, list(bytes.cast(), n), Flags(f)).map(|()| 0)
    })
}

unsafe extern "C" fn receive<P: ProviderObject>(
    h: Handle,
    r: u64,
    s: *const MemoryPiece,
    n: u32,
) -> i32 {
    guard(|| unsafe { object::<QueuePairOf<P>>(h).receive(r, list(s, n)).map(|()| 0) })
}

unsafe extern "C" fn read<P: ProviderObject>(
    h: Handle,
    r: u64,
    s: *const MemoryPiece,
    n: u32,
    from: *const RemoteMemory,
    f: u32,
) -> i32 {
    guard(|| unsafe {
        object::<QueuePairOf<P>>(h).read(r, list(s, n), *from, Flags(f)).map(|()| 0)
    })
}

unsafe extern "C" fn write<P: ProviderObject>(
    h: Handle,
    r: u64,
    s: *const MemoryPiece,
    n: u32,
    to: *const RemoteMemory,
    f: u32,
) -> i32 {
    guard(|| unsafe { object::<QueuePairOf<P>>(h).write(r, list(s, n), *to, Flags(f)).map(|()| 0) })
}

unsafe extern "C" fn bind<P: ProviderObject>(
    h: Handle,
    r: u64,
    region: Handle,
    address: u64,
    length: u64,
    access: u32,
    flags: u32,
    token: *mut u32,
) -> i32 {
    guard(|| unsafe {
        let (access, region) = (RemoteAccess::from_code(access)?, object(region));
        let queue_pair = object::<QueuePairOf<P>>(h);
        token.write(queue_pair.bind(r, region, address, length, access, Flags(flags))?);
        Ok(0)
    })
}

unsafe extern "C" fn invalidate<P: ProviderObject>(
    h: Handle,
    r: u64,
    token: u32,
    flags: u32,
) -> i32 {
    guard(|| unsafe { object::<QueuePairOf<P>>(h).invalidate(r, token, Flags(flags)).map(|()| 0) })
}

unsafe extern "C" fn flush<P: ProviderObject>(h: Handle) -> i32 {
    guard(|| unsafe { object::<QueuePairOf<P>>(h) }.flush().map(|()| 0))
}

unsafe extern "C" fn bind_connector<P: ProviderObject>(h: Handle, local: *const AbiAddress) -> i32 {
    guard(|| unsafe { object::<ConnectorOf<P>>(h).bind(abi::from_c(&*local)?).map(|()| 0) })
}

unsafe extern "C" fn connect<P: ProviderObject>(
    h: Handle,
    queue_pair: Handle,
    peer: *const AbiAddress,
    data: *const c_void,
    n: u32,
    request: u64,
) -> i32 {
    guard(|| unsafe {
        let (peer, data) = (abi::from_c(&*peer)?, list(data.cast(), n));
        begun(object::<ConnectorOf<P>>(h).connect(object(queue_pair), peer, data, request))
    })
}

unsafe extern "C" fn complete_connect<P: ProviderObject>(h: Handle, request: u64) -> i32 {
    guard(|| begun(unsafe { object::<ConnectorOf<P>>(h) }.complete_connect(request)))
}

unsafe extern "C" fn accept<P: ProviderObject>(
    h: Handle,
    queue_pair: Handle,
    data: *const c_void,
    n: u32,
    request: u64,
) -> i32 {
    guard(|| unsafe {
        let data = list(data.cast(), n);
        begun(object::<ConnectorOf<P>>(h).accept(object(queue_pair), data, request))
    })
}

unsafe extern "C" fn reject<P: ProviderObject>(h: Handle, data: *const c_void, n: u32) -> i32 {
    guard(|| unsafe { object::<ConnectorOf<P>>(h).reject(list(data.cast(), n)).map(|()| 0) })
}

unsafe extern "C" fn private_data<P: ProviderObject>(
    h: Handle,
    into: *mut c_void,
    room: u32,
) -> i32 {
    guard(|| unsafe {
        let into = slice::from_raw_parts_mut(into.cast::<u8>(), room as usize);
        object::<ConnectorOf<P>>(h).private_data(into).map(|n| n as i32)
    })
}

unsafe extern "C" fn local_address<P: ProviderObject>(h: Handle, into: *mut AbiAddress) -> i32 {
    guard(|| unsafe {
        into.write(abi::to_c(object::<ConnectorOf<P>>(h).local_address()?));
        Ok(0)
    })
}

unsafe extern "C" fn peer_address<P: ProviderObject>(h: Handle, into: *mut AbiAddress) -> i32 {
    guard(|| unsafe {
        into.write(abi::to_c(object::<ConnectorOf<P>>(h).peer_address()?));
        Ok(0)
    })
}

unsafe extern "C" fn notify_disconnect<P: ProviderObject>(h: Handle, request: u64) -> i32 {
    guard(|| begun(unsafe { object::<ConnectorOf<P>>(h) }.notify_disconnect(request)))
}

unsafe extern "C" fn disconnect<P: ProviderObject>(h: Handle, request: u64) -> i32 {
    guard(|| begun(unsafe { object::<ConnectorOf<P>>(h) }.disconnect(request)))
}

unsafe extern "C" fn bind_listener<P: ProviderObject>(h: Handle, local: *const AbiAddress) -> i32 {
    guard(|| unsafe { object::<ListenerOf<P>>(h).bind(abi::from_c(&*local)?).map(|()| 0) })
}

unsafe extern "C" fn listen<P: ProviderObject>(h: Handle, backlog: u32) -> i32 {
    guard(|| unsafe { object::<ListenerOf<P>>(h) }.listen(backlog).map(|()| 0))
}

unsafe extern "C" fn listener_address<P: ProviderObject>(h: Handle, into: *mut AbiAddress) -> i32 {
    guard(|| unsafe {
        into.write(abi::to_c(object::<ListenerOf<P>>(h).local_address()?));
        Ok(0)
    })
}

unsafe extern "C" fn get_connection_request<P: ProviderObject>(
    h: Handle,
    connector: Handle,
    r: u64,
) -> i32 {
    guard(|| unsafe {
        begun(object::<ListenerOf<P>>(h).get_connection_request(object(connector), r))
    })
}
