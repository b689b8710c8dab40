//! The two bells of a connection, as one of its ends has them: each end rings one and sleeps on the other. To wake a
//! sleeper, the library sends no byte over the TCP connection.
//!
//! The connector makes both bells, and passes them with the segment. They cost each end two descriptors. These lie
//! beyond the program's soft limit where the hard limit allows that.

use crate::sys::{actions, bell, file, hidden, Fd, Result};

/// See the module. Closed with [`Bells::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bells {
    /// Hidden. This end rings it.
    own: Fd,
    /// Hidden. The peer rings it.
    peers: Fd,
}

impl Bells {
    /// Where the peer shares no memory: the link has a bell of its own.
    pub(crate) const NONE: Bells = Bells { own: -1, peers: -1 };

    /// Makes both. The second value is passed to the acceptor, and closed by the caller.
    ///
    /// # Errors
    /// As [`bell::make`].
    pub(crate) fn create() -> Result<(Bells, [Fd; 2])> {
        let (own, pass_own) = bell::make()?;
        let (peers, pass_peers) = bell::make().inspect_err(|_| {
            file::close(own);
            file::close(pass_own);
        })?;
        let bells = Bells { own: hidden::keep_aside(own), peers: hidden::keep_aside(peers) };
        Ok((bells, [pass_own, pass_peers]))
    }

    /// The bells that the connector passed, seen from the other end. Its descriptors stay open.
    ///
    /// # Errors
    ///
    /// As [`bell::adopt`].
    pub(crate) fn adopt([connectors, acceptors]: [Fd; 2]) -> Result<Bells> {
        let peers = bell::adopt(connectors)?;
        let own = bell::adopt(acceptors).inspect_err(|_| file::close(peers))?;
        Ok(Bells { own: hidden::keep_aside(own), peers: hidden::keep_aside(peers) })
    }

    /// Wakes the peer's sleepers. Waits for nothing.
    pub(crate) fn ring(self) {
        // The program may have put a file of its own there by dup2.
        if hidden::is_kept(self.own) {
            bell::ring(self.own);
            actions::note_ring();
        }
    }

    /// Wakes this end's own sleepers, of all its processes: what they are to wait for has changed. Waits for nothing.
    pub(crate) fn ring_here(self) {
        if hidden::is_kept(self.peers) {
            bell::ring(self.peers);
        }
    }

    /// Takes the peer's rings off; true if there was one.
    pub(crate) fn silence(self) -> bool {
        hidden::is_kept(self.peers) && bell::silence(self.peers)
    }

    /// The bell that this end sleeps on.
    pub(crate) fn heard(self) -> Fd {
        hidden::kept(self.peers)
    }

    /// This process uses them no more.
    pub(crate) fn close(self) {
        [self.own, self.peers].into_iter().filter(|fd| *fd >= 0).for_each(hidden::close);
    }
}
