//! The helper calls the switch for connections at which the program does not look.

use crate::fabric::link::Link;
use std::sync::OnceLock;

/// What the helper has done for connections at which the program does not look. The helper holds no lock of the fabric
/// then, so that the switch may take its own. The switch's locks must be free within moments.
#[derive(Debug)]
pub(crate) struct HelperCalls {
    /// Goes on with a connection that its peer brings back to TCP; true: once more in a moment.
    pub come_to: fn(&Link) -> bool,
    /// Does what was asked for from outside; true: once more in a moment.
    pub serve_requests: fn() -> bool,
    /// Others may [`call`](crate::fabric::call) the helper there.
    pub reachable: fn(u64),
}

static CALLS: OnceLock<HelperCalls> = OnceLock::new();

/// Before the helper is needed.
pub(super) fn set(calls: HelperCalls) {
    let _ = CALLS.set(calls);
}

pub(super) fn come_to(link: &Link) -> bool {
    CALLS.get().is_some_and(|calls| (calls.come_to)(link))
}

pub(super) fn serve_requests() -> bool {
    CALLS.get().is_some_and(|calls| (calls.serve_requests)())
}
