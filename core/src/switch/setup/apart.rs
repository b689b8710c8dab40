//! Ends of which no address tells that they belong together: in different network namespaces, or with NAT between them. Coins
//! have to show it, to each of them ([`Coins`]). A coin is flipped at each transfer, until both are convinced.

use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::session::{Coins, Counts, Shown};
use crate::switch::socket::negotiation::Agreed;
use crate::sys::segments::{self, Segments};
use crate::sys::{process, Fd};

fn count(fd: Fd) -> Option<Counts> {
    let Segments { bytes_out, bytes_in, bare_out, bare_in } = Segments::of(fd)?;
    Some(Counts { sent: bytes_out, received: bytes_in, bare_out, bare_in })
}

/// Coins for a connection, none of which is flipped yet.
///
/// # Errors
/// [`Reason::Unproven`] where the kernel does not count.
pub(super) fn coins(fd: Fd) -> Result<Coins, Reason> {
    count(fd).map(Coins::new).ok_or(Reason::Unproven)
}

/// Before a transfer: what the coins show by now to this end. Where none are needed the ends are known to belong together.
pub(super) fn step(fd: Fd, role: Role, agreed: &mut Agreed) -> Shown {
    let Some(coins) = &mut agreed.coins else { return Shown::Same };
    let Some(before) = count(fd) else { return Shown::Different };
    let shown = coins.look(before, agreed.segment.sight(role), agreed.segment.sight(role.peer()));
    let [chance, _] = process::random();
    if chance & 1 == 1 {
        segments::acknowledge(fd);
    }
    if let Some(after) = count(fd) {
        coins.flipped(before, after);
    }
    shown
}
