//! What rdma-core has to do about forks. A child opens devices of its own. The descriptors that it inherited are closed
//! by [`inherited`](sanshim_core::provider::software::inherited), which is told of each.

use rdma_sys::*;
use std::sync::Once;

/// To be called before the first device is opened. If the kernel does not copy pinned pages at a fork, rdma-core keeps
/// its memory out of children from now on.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: no arguments; nothing of rdma-core's is in use yet.
        unsafe {
            if ibv_is_fork_initialized() != IBV_FORK_UNNEEDED && ibv_fork_init() != 0 {
                log::warn!("verbs: memory registered before a fork may not be safe afterwards");
            }
        }
    });
}
