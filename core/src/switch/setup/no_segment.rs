//! What the log says where an end has no segment.

use crate::provider::shm::SegmentError;
use crate::switch::socket::Socket;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Says why there is no segment. A shortage of memory concerns the whole process, whose every connection tries again
/// and again. The log says that once.
pub(super) fn warn_about_segment(socket: &Socket, why: &SegmentError) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let is_shortage = matches!(why, SegmentError::System(_));
    if !is_shortage || !SAID.swap(true, Relaxed) {
        log::warn!("fd {}: staying on TCP: {why}", socket.anchor());
    }
}
