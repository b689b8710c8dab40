//! An accepted TCP connection looks for its link.

use super::claims::{self, Claim, BINDING};
use super::shared_backlog::SharedBacklog;
use super::state::state;
use crate::fabric::fork_gate::no_fork;
use crate::fabric::source;
use crate::sys::process::SignalsHeld;
use crate::sys::time;
use std::net::IpAddr;

/// Between two looks (ns) for addresses that are to come. Of a nap that takes longer, because the host is busy, no more
/// than so much counts: who brings the addresses gets no processor either.
const NAP: u64 = 20_000;
const MOST_COUNTED: u64 = 1_000_000;
/// And by the clock: signals are held meanwhile.
const LONGEST: u64 = 2_000_000_000;

/// The link of a TCP connection from `from` that was accepted at `local`, with the addresses that its
/// connector binds it to; waits a moment for one that has arrived and is not bound. `None`: there is none.
pub(crate) fn accept(
    tuple: &[u8],
    from: IpAddr,
    local: IpAddr,
    backlog: &SharedBacklog,
) -> Option<Claim> {
    if !source::may_exist() {
        return None;
    }
    let _held = SignalsHeld::new();
    let start = time::now();
    let (mut looked, mut waited) = (start, 0);
    loop {
        let gate = no_fork();
        let mut state = state();
        if !state.listening.iter().any(|one| std::ptr::eq(one.backlog.0, backlog)) {
            drop((state, gate));
            return claims::claim(backlog, tuple, from, local);
        }
        let (found, expected) = state.look_for(tuple, from, start, |_| true);
        let expected = expected.map(|one| one.link.clone());
        if let Some(found) = found {
            let (link, geometry) = state.arrivals.swap_remove(found).leave();
            drop(state);
            if !link.take() {
                link.close_within(None);
                return None;
            }
            return Some(Claim { link, geometry });
        }
        drop(state);
        let link = expected?;
        let now = time::now();
        waited += (now - looked).min(MOST_COUNTED);
        looked = now;
        if waited > BINDING || now - start > LONGEST {
            return None;
        }
        link.poll();
        drop(gate);
        time::sleep(NAP);
    }
}
