//! A process's offer socket: a Unix socket whose name its entries say. There connectors offer sessions for connections
//! that this process accepted. The kernel says who both sides are. Must not judge what is offered.

use super::offer_name::{self, OfferName};
use super::peer_table;
use super::peer_table::Entry;
use crate::reason::Reason;
use crate::switch::policy::{self, Relation};
use crate::switch::socket::structure::Guarded;
use crate::switch::socket::tuple::Tuple;
use crate::sys::packet;
use crate::sys::{file, hidden, net, process, time, Errno, Fd, Result};

/// Most sessions kept for connections that have made no transfer since; the oldest goes.
const MOST_KEPT: usize = 256;
/// Most connectors that have not offered anything yet.
const MOST_SILENT: usize = 64;
/// How long (ns) a session is kept.
const KEPT_FOR: u64 = 1_000_000_000;

/// Connections that wait for a look.
const BACKLOG: i32 = 4096;

/// See the module. Closed with [`OfferSocket::retire`] or [`OfferSocket::close`].
pub(super) struct OfferSocket {
    listener: Fd,
    name: OfferName,
    table: Fd,
    entry: Entry,
    /// The network namespace that it is in.
    namespace: u64,
    kept: Vec<Offer>,
    /// Connectors that were accepted before they had offered anything, and when (clock, ns).
    silent: Vec<(Fd, u64)>,
}

/// This process's, once it was needed.
pub(super) static OFFER_SOCKET: Guarded<Option<OfferSocket>> = Guarded::new(None);

/// A session that a connector offered.
pub(super) struct Offer {
    /// The connection that it is for.
    tuple: Tuple,
    /// Hidden.
    pub(super) segment: Fd,
    pub(super) connector: Relation,
    at: u64,
}

/// The network namespace of a socket, as far as peer tables have to be told apart.
fn namespace_of(socket: Fd) -> Result<u64> {
    // Before Linux 5.14 it is taken for the one that the program is in.
    net::namespace(socket).or_else(|_| net::current_namespace())
}

impl OfferSocket {
    /// Opens one in the network namespace of that socket.
    pub(super) fn open(like: Fd) -> Result<OfferSocket> {
        let (uid, namespace) = (process::euid(), namespace_of(like)?);
        let table = hidden::keep(peer_table::open_own(uid, namespace)?);
        let entry = Entry { socket: process::random() };
        match listen(entry) {
            Ok((listener, name)) => Ok(OfferSocket {
                listener,
                name,
                table,
                entry,
                namespace,
                kept: Vec::new(),
                silent: Vec::new(),
            }),
            Err(e) => {
                hidden::close(table);
                Err(e)
            }
        }
    }

    /// True if it can be used for connections of that socket's network namespace.
    pub(super) fn serves(&self, socket: Fd) -> bool {
        namespace_of(socket) == Ok(self.namespace)
            && hidden::is_hidden(self.listener)
            && hidden::is_hidden(self.table)
            && peer_table::is_there(self.table)
            && self.name.is_there()
    }

    /// Tells the peer of a connection that its other end is here.
    pub(super) fn advertise(&self, tuple: &Tuple) -> Result<()> {
        peer_table::advertise(self.table, tuple, self.entry)
    }

    /// Nobody looks for its sessions from now on.
    pub(super) fn withdraw(&self, tuple: &Tuple) {
        peer_table::withdraw(self.table, tuple, self.entry);
    }

    /// The session that was offered for a connection, if one was.
    pub(super) fn take(&mut self, tuple: &Tuple) -> Option<Offer> {
        self.hear();
        let at = self.kept.iter().rposition(|one| one.tuple == *tuple)?;
        Some(self.kept.remove(at))
    }

    fn hear(&mut self) {
        let now = time::now();
        let kept = &mut self.kept;
        let mut takes_in = |connection, heard| {
            let received = receive(connection, now);
            let is_over = received.is_some() || now - heard > KEPT_FOR;
            kept.extend(received.flatten());
            is_over
        };
        self.silent.retain(|&(connection, heard)| {
            let is_over = takes_in(connection, heard);
            if is_over {
                hidden::close(connection);
            }
            !is_over
        });
        while self.silent.len() < MOST_SILENT {
            let Ok(connection) = net::accept(self.listener, libc::SOCK_CLOEXEC) else { break };
            if !may_offer(connection) || takes_in(connection, now) {
                file::close(connection);
            } else {
                self.silent.push((hidden::keep(connection), now));
            }
        }
        let surplus = self.kept.len().saturating_sub(MOST_KEPT);
        let old = self.kept.iter().take_while(|one| now - one.at > KEPT_FOR).count();
        for gone in self.kept.drain(..surplus.max(old)) {
            hidden::close(gone.segment);
        }
    }

    /// The connection is over: what was offered for it is not taken any more.
    pub(super) fn forget(&mut self, tuple: &Tuple) {
        self.withdraw(tuple);
        if let Some(handed) = self.take(tuple) {
            hidden::close(handed.segment);
        }
    }

    /// The process does not need it any more.
    pub(super) fn retire(self) {
        self.name.remove();
        self.close();
    }

    /// The process exits.
    pub(super) fn exiting(&self) {
        self.name.remove();
    }

    /// It is the parent's of a fork child, or nobody finds it any more.
    pub(in crate::switch) fn close(self) {
        self.name.close();
        hidden::close(self.listener);
        hidden::close(self.table);
        let silent = self.silent.into_iter().map(|(connection, _)| connection);
        silent.chain(self.kept.into_iter().map(|one| one.segment)).for_each(hidden::close);
    }
}

/// A socket of the name that an entry says, for whoever may share memory with this process.
fn listen(entry: Entry) -> Result<(Fd, OfferName)> {
    let (socket, name) = OfferName::bind(entry.socket)?;
    let own = process::euid();
    let mut others: Vec<u32> = policy::identities().filter(|uid| *uid != own).collect();
    others.sort_unstable();
    others.dedup();
    if let Err(e) = name.admit(&others) {
        log::info!("connectors of the users {others:?} do not reach this process: {e}");
    }
    match net::listen(socket, BACKLOG) {
        Ok(()) => Ok((hidden::keep(socket), name)),
        Err(e) => {
            file::close(socket);
            name.remove();
            name.close();
            Err(e)
        }
    }
}

/// What a connector sent, if that makes sense. `None`: it has not sent it yet.
fn receive(connection: Fd, now: u64) -> Option<Option<Offer>> {
    let mut buffer = [0u8; Tuple::ENCODED + 1];
    match packet::receive(connection, &mut buffer) {
        Err(Errno(libc::EAGAIN)) => None,
        Ok((n, Some(segment))) => {
            Some(judge(connection, Tuple::decode(&buffer[..n]), segment, now))
        }
        Ok((_, None)) | Err(_) => Some(None),
    }
}

fn may_offer(connection: Fd) -> bool {
    let Ok((_, uid)) = packet::peer_credentials(connection) else { return false };
    let may = policy::may_share_with(uid);
    if !may {
        log::info!("a connector of user {uid} may not share memory with us (allow_users)");
    }
    may
}

fn judge(connection: Fd, tuple: Option<Tuple>, segment: Fd, now: u64) -> Option<Offer> {
    match (packet::peer_credentials(connection), tuple) {
        (Ok((pid, uid)), Some(tuple)) => {
            let segment = hidden::keep(segment);
            Some(Offer { tuple, segment, connector: Relation::to(pid, uid), at: now })
        }
        _ => {
            file::close(segment);
            None
        }
    }
}

/// Offers a session to the process that has the acceptor's end of the connection of `socket`. Says what is known of it.
///
/// # Errors
/// [`Reason::PeerNative`] if no process says that it has it, [`Reason::OtherUser`] if we must not share memory with it.
pub(super) fn offer(
    socket: Fd,
    tuple: &Tuple,
    segment: impl FnOnce() -> std::result::Result<Fd, Reason>,
) -> std::result::Result<Relation, Reason> {
    let namespace = namespace_of(socket).map_err(|_| Reason::PeerNative)?;
    let (owner, entry) = policy::identities()
        .find_map(|uid| Some((uid, peer_table::find(uid, namespace, tuple)?)))
        .ok_or(Reason::PeerNative)?;
    let fd = packet::deaf_socket().map_err(|_| Reason::OutOfMemory)?;
    let handed = (|| {
        offer_name::connect(fd, owner, entry.socket).map_err(|e| match e {
            // Its queue is full, which it will not be long.
            Errno(libc::EAGAIN) => Reason::Quiet,
            Errno(libc::EACCES) => Reason::OtherUser,
            _ => Reason::PeerNative,
        })?;
        let (pid, uid) = packet::peer_credentials(fd).map_err(|_| Reason::PeerNative)?;
        if !policy::may_share_with(uid) {
            return Err(Reason::OtherUser);
        }
        let segment = segment()?;
        packet::send(fd, &tuple.encode(), Some(segment)).map_err(|_| Reason::PeerNative)?;
        Ok(Relation::to(pid, uid))
    })();
    file::close(fd);
    handed
}
