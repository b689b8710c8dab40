//! What an adapter can do at most.

use super::handshake::PRIVATE_DATA;
use super::layout::RECEIVES;
use super::ring::MAX_MESSAGE;
use super::work_queue::SEGMENTS;
use crate::provider::interface::Limits;
use crate::provider::shm::THRESHOLD;

/// An adapter's limits. Each connection finds out whether the kernel lets the two processes access each other's memory.
pub(super) const LIMITS: Limits = Limits {
    max_registration: 1 << 46,
    max_message: MAX_MESSAGE,
    // A transfer is copied when it is posted. A thread that looks meanwhile does not wait for that, but the requests behind
    // it do.
    max_transfer: 4 << 20,
    max_inline: 256,
    max_segments: SEGMENTS as u32,
    max_receive_depth: RECEIVES as u32,
    max_initiator_depth: 1024,
    max_shared_receive_depth: 4096,
    max_completion_depth: 16384,
    max_inbound_reads: 16,
    max_outbound_reads: 16,
    max_private_data: PRIVATE_DATA as u32,
    rdma_threshold: THRESHOLD,
    // The kernel copies to and from a process as that would itself: a fork makes no difference.
    flags: Limits::BIND | Limits::APPLICATION_MEMORY,
    reserved: 0,
};
