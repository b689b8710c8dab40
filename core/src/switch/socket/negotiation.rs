//! How far the ends of a connection on TCP have agreed to go to the SAN, as one of them knows it.
//! [`setup`](crate::switch::setup) decides that.

use crate::fabric::{Link, Meeting};
use crate::proof::Proof;
use crate::provider::shm::Segment;
use crate::switch::policy::Relation;
use crate::switch::socket::names::Names;
use crate::switch::socket::tuple::Tuple;
use crate::sys::time;
use std::sync::Arc;

/// See the module.
pub(in crate::switch) enum Negotiation {
    /// The acceptor put its entry into the peer table.
    Advertised {
        /// The connection.
        tuple: Tuple,
        /// Under which it is looked for.
        names: Names,
        /// How often it has looked for an answer since.
        looks: u32,
    },
    /// The ends are on different hosts, and look for each other.
    Elsewhere {
        /// How they do.
        meeting: Meeting,
        /// How often this one has looked since what came of it.
        looks: u32,
    },
    /// A session is offered, and taken where the ends need no proof, or have it; or a link stands.
    Agreed(Box<Agreed>),
}

/// See [`Negotiation::Agreed`]. Boxed, because a segment is large for a stack.
pub(in crate::switch) struct Agreed {
    pub(in crate::switch) segment: Segment,
    /// To another host, with the segment.
    pub(in crate::switch) link: Option<Arc<Link>>,
    pub(in crate::switch) peer: Relation,
    /// Where no address tells that both ends have one connection: what proves it.
    pub(in crate::switch) proof: Option<Proof>,
    pub(in crate::switch) looks: u32,
    /// Clock (ns) when it was offered, or taken.
    pub(in crate::switch) since: u64,
}

impl Negotiation {
    /// In a fork child: it is the parent's.
    pub(in crate::switch) fn forget(self) {
        match self {
            Negotiation::Advertised { .. } => {}
            Negotiation::Elsewhere { meeting, .. } => meeting.forget(),
            Negotiation::Agreed(agreed) => match agreed.link {
                Some(link) => link.leave_to_parent(),
                None => agreed.unmap(),
            },
        }
    }
}

impl Agreed {
    /// A session that begins in this segment, on this host, with the peer that has the connection.
    pub(in crate::switch) fn of(segment: Segment, peer: Relation) -> Self {
        Agreed { segment, link: None, peer, proof: None, looks: 0, since: time::now() }
    }

    /// Nothing comes of it: the peer learns of that.
    pub(in crate::switch) fn end(self) {
        self.segment.agreement().withdraw();
        Agreed::dismiss(self.segment, self.link);
    }

    /// Nothing comes of it here.
    pub(in crate::switch) fn unmap(self) {
        Agreed::dismiss(self.segment, None);
    }

    /// Ends this process's part of a session that it does not use, and no copy of it exists.
    pub(super) fn dismiss(segment: Segment, link: Option<Arc<Link>>) {
        match link {
            Some(link) => {
                link.refuse();
                // It unmaps the segment, when it ends.
                link.close(None);
            }
            // SAFETY: no other copy exists before the end enters.
            None => unsafe { segment.unmap() },
        }
    }
}
