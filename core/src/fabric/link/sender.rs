//! The part of a link that only the sending thread may touch.

use crate::fabric::frame::{FrameState, HEADER, LARGEST};
use crate::fabric::port::Buffer;
use std::collections::VecDeque;

/// Requests outstanding on a queue pair.
pub(super) const DEPTH: u32 = 32;
/// Bytes of a send buffer that one frame carries at most.
pub(super) const CHUNK: usize = LARGEST - HEADER;

/// See the module.
#[derive(Default)]
pub(super) struct LinkSender {
    /// Sends that were posted and were seen to complete.
    pub(super) reclaimed: u64,
    /// Sends in a row that do not tell.
    pub(super) silent: u32,
    /// Every send is to tell.
    pub(super) certain: bool,
    /// Buffers in use, with the number of their send.
    pub(super) held: VecDeque<(u64, Buffer)>,
    /// What the peer knows of us.
    pub(super) told: FrameState,
}

impl LinkSender {
    /// Room for all that can be held at a time: sending does not allocate.
    pub(super) fn prepare(&mut self) {
        self.held.reserve(DEPTH as usize + 1);
    }
}

/// Nothing more can be sent at the moment, or ever.
pub(super) struct Full;
