//! rdma_cm's events, taken without blocking and acknowledged at once.

use crate::error::last;
use rdma_sys::*;
use sanshim_core::provider::interface::ProviderResult;
use sanshim_core::provider::software::inherited;
use sanshim_core::sys::file;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::slice;

/// An event channel.
pub(crate) struct Channel(NonNull<rdma_event_channel>);

// SAFETY: rdma-core's objects may be used by any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// A copy of an event.
pub(crate) struct Event {
    pub(crate) kind: rdma_cm_event_type::Type,
    pub(crate) status: i32,
    /// The connection's identifier. In a connection request it is a new one.
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) private_data: Vec<u8>,
    /// RDMA reads that the peer may have under way towards here, and from here.
    pub(crate) inbound: u8,
    pub(crate) outbound: u8,
}

impl Channel {
    pub(crate) fn new() -> ProviderResult<Self> {
        // SAFETY: no arguments.
        let channel = NonNull::new(unsafe { rdma_create_event_channel() }).ok_or_else(last)?;
        // Moved out of the program's way, which may expect that low numbers are its own (select).
        // SAFETY: a live channel, whose descriptor nothing but the channel knows yet.
        unsafe { (*channel.as_ptr()).fd = file::move_high((*channel.as_ptr()).fd) };
        let channel = Channel(channel);
        inherited::note(channel.fd());
        Ok(channel)
    }

    pub(crate) fn as_ptr(&self) -> *mut rdma_event_channel {
        self.0.as_ptr()
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: a live channel.
        unsafe { self.0.as_ref() }.fd
    }

    /// The next event, if there is one. The channel's descriptor does not block.
    pub(crate) fn next(&self) -> Option<Event> {
        use rdma_cm_event_type::*;
        let mut event = ptr::null_mut();
        // SAFETY: a live channel and a place for the event.
        if unsafe { rdma_get_cm_event(self.as_ptr(), &mut event) } != 0 {
            return None;
        }
        // SAFETY: an event until it is acknowledged, which is done once it is copied. `conn` is the
        // part of the union that reliable connections fill.
        unsafe {
            let (kind, conn) = ((*event).event, (*event).param.conn);
            let carries_data = matches!(
                kind,
                RDMA_CM_EVENT_CONNECT_REQUEST
                    | RDMA_CM_EVENT_CONNECT_RESPONSE
                    | RDMA_CM_EVENT_ESTABLISHED
                    | RDMA_CM_EVENT_REJECTED
            );
            let private_data = match conn.private_data_len {
                length if carries_data && length > 0 && !conn.private_data.is_null() => {
                    slice::from_raw_parts(conn.private_data.cast::<u8>(), length.into()).to_vec()
                }
                _ => Vec::new(),
            };
            let copy = Event {
                kind,
                status: (*event).status,
                id: (*event).id,
                private_data,
                inbound: conn.responder_resources,
                outbound: conn.initiator_depth,
            };
            rdma_ack_cm_event(event);
            Some(copy)
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        inherited::forget(self.fd());
        // SAFETY: its identifiers are gone.
        unsafe { rdma_destroy_event_channel(self.as_ptr()) };
    }
}
