//! Queue pairs that ended. The link keeps each until it has taken in what had arrived for it. The port's buffers that
//! hold those bytes would be lost with the queue pair.

use super::state::{Link, LinkPort};
use super::wire::Wire;
use crate::sys::lock_order::{LockRank, RankedMutex};
use crate::sys::time;
use std::sync::Arc;

/// How long (ns) a device may take to tell of all that was under way.
const UNDER_WAY: u64 = 10_000_000;

/// A link, with a queue pair that is not its own any more, and since when. The queue pair goes before the link's
/// memory.
type Ended = (Option<Wire>, Arc<Link>, u64);

static ENDED: RankedMutex<Vec<Ended>> = RankedMutex::new(LockRank::EndedLinks, Vec::new());

/// In a fork child: all of it is the parent's.
pub(in crate::fabric) fn after_fork_in_child() {
    std::mem::forget(std::mem::take(&mut *ENDED.lock()));
}

/// Keeps the link for a moment, and the queue pair that was taken from it. By the helper.
pub(super) fn keep(link: Arc<Link>, wire: Option<Wire>) {
    ENDED.lock().push((wire, link, time::now()));
}

/// Lets those go of which everything was told; true if there are others. By the helper, once it has taken what completed.
pub(in crate::fabric) fn let_go() -> bool {
    let now = time::now();
    let over: Vec<_> =
        ENDED.lock().extract_if(.., |(.., since)| now.saturating_sub(*since) > UNDER_WAY).collect();
    // Outside of the lock: closing takes its time.
    drop(over);
    !ENDED.lock().is_empty()
}

/// The device of a port was removed. By the helper.
pub(in crate::fabric) fn forget_port(port: &LinkPort) {
    ENDED.lock().retain(|(_, link, _)| !std::ptr::eq(link.port(), port));
}
