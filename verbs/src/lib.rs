//! The `verbs` provider: RDMA through rdma-core (N, M). The interface is in sanshim-core.
//!
//! It makes connections by rdma_cm, and has reliable queue pairs. RDMA goes through memory windows, so that only one
//! peer can reach the memory (M2). The provider asks the device for every limit. A registration lasts as long as its
//! region. The provider registers the program's memory for one transfer (M5), so there is no cache that a later mapping
//! of the same addresses could make stale.

mod adapter;
mod completion_queue;
mod connector;
mod device;
mod error;
mod events;
mod fork;
mod listener;
mod provider;
mod queue_pair;
mod region;
mod shared_context;
mod shared_receive_queue;
mod windows;

use sanshim_core::provider::interface::{abi::ProviderTable, export, VERSION};

/// The library's only entry (include/sanshim_provider.h).
#[no_mangle]
pub extern "C" fn sanshim_provider(version: u32) -> *const ProviderTable {
    if version == VERSION {
        export::table::<provider::Verbs>()
    } else {
        std::ptr::null()
    }
}
