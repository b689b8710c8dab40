//! What this process keeps of links that another process controls: their old queue pairs, which end in a moment, and
//! their identities, because control may come back.

use super::ended;
use super::state::{Link, LinkPort};
use super::wire::Wire;
use crate::sys::lock_order::{LockRank, RankedMutex};
use crate::sys::time;
use std::sync::{Arc, Weak};

/// How long (ns) a link keeps a queue pair that another one replaced: its peer's last message is acknowledged by then.
const REPLACED: u64 = 1_000_000_000;

/// A queue pair that another one replaced, and since when. It ends before its link's memory.
type Replaced = (Wire, Arc<Link>, u64);

static REPLACED_PAIRS: RankedMutex<Vec<Replaced>> =
    RankedMutex::new(LockRank::ReplacedPairs, Vec::new());
/// Links of which relatives have control now.
static GIVEN: RankedMutex<Vec<Weak<Link>>> = RankedMutex::new(LockRank::GivenLinks, Vec::new());

/// In a fork child: all of it is the parent's.
pub(in crate::fabric) fn after_fork_in_child() {
    std::mem::forget(std::mem::take(&mut *REPLACED_PAIRS.lock()));
    std::mem::forget(std::mem::take(&mut *GIVEN.lock()));
}

/// This process gave control of a link to a relative, which may give it back.
pub(super) fn gave(link: &Arc<Link>) {
    let mut given = GIVEN.lock();
    given.retain(|one| one.strong_count() > 0 && !std::ptr::eq(one.as_ptr(), &**link));
    given.push(Arc::downgrade(link));
}

/// The links of that name which relatives have.
pub(in crate::fabric) fn find(id: u64) -> Vec<Arc<Link>> {
    let all: Vec<_> = GIVEN.lock().iter().filter_map(Weak::upgrade).collect();
    all.into_iter().filter(|one| one.id() == id).collect()
}

/// Ends, in a moment, a queue pair whose link goes on over another.
pub(super) fn end_later(wire: Wire, link: Arc<Link>) {
    REPLACED_PAIRS.lock().push((wire, link, time::now()));
}

/// Ends replaced queue pairs whose peers know by now. True if there are others. Called by the helper.
pub(in crate::fabric) fn end_replaced() -> bool {
    let now = time::now();
    let over: Vec<_> = REPLACED_PAIRS
        .lock()
        .extract_if(.., |(.., since)| now.saturating_sub(*since) > REPLACED)
        .collect();
    for (wire, link, _) in over {
        wire.end();
        ended::keep(link, Some(wire));
    }
    !REPLACED_PAIRS.lock().is_empty()
}

/// The device of a port was removed. By the helper.
pub(in crate::fabric) fn forget_port(port: &LinkPort) {
    REPLACED_PAIRS.lock().retain(|(_, link, _)| !std::ptr::eq(link.port(), port));
}
