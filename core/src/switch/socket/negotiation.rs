//! How far the ends of a connection on TCP have agreed to go to the SAN, as one of them knows it. Decides nothing: that
//! is [`setup`](crate::switch::setup)'s.

use crate::provider::shm::Segment;
use crate::switch::policy::Relation;
use crate::switch::socket::tuple::Tuple;

/// See the module.
#[expect(clippy::large_enum_variant, reason = "it is boxed wherever it stays")]
pub(in crate::switch) enum Negotiation {
    /// The acceptor put its entry into the peer table.
    Advertised {
        /// The connection.
        tuple: Tuple,
        /// How often it has looked for an answer since.
        looks: u32,
    },
    /// A session is offered, by the connector, or taken, by the acceptor.
    Agreed(Agreed),
}

/// See [`Negotiation::Agreed`].
pub(in crate::switch) struct Agreed {
    pub(in crate::switch) segment: Segment,
    pub(in crate::switch) peer: Relation,
    pub(in crate::switch) looks: u32,
    /// Clock (ns) when it was offered, or taken.
    pub(in crate::switch) since: u64,
}

impl Negotiation {
    /// In a fork child: it is the parent's.
    pub(in crate::switch) fn forget(self) {
        if let Negotiation::Agreed(agreed) = self {
            agreed.forget();
        }
    }
}

impl Agreed {
    /// Nothing comes of it: the peer learns of that.
    pub(in crate::switch) fn end(self) {
        self.segment.withdraw();
        self.forget();
    }

    /// Nothing comes of it here.
    pub(in crate::switch) fn forget(self) {
        // SAFETY: no other copy exists before the end enters.
        unsafe { self.segment.unmap() };
    }
}
