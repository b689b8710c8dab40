//! A process's offer socket: a Unix socket whose name its entries say. There connectors offer sessions for connections
//! that this process accepted. The kernel says who both sides are. Must not judge what is offered.

use super::identity;
use super::peer_table;
use super::peer_table::Entry;
use crate::reason::Reason;
use crate::switch::policy::{self, Relation};
use crate::switch::socket::structure::Guarded;
use crate::switch::socket::tuple::Tuple;
use crate::sys::packet::{self, AbstractName};
use crate::sys::{file, hidden, net, process, time, Errno, Fd, Result};

/// Most sessions kept for connections that have made no transfer since; the oldest goes.
const MOST_KEPT: usize = 512;
/// Most connectors that have not offered anything yet.
const MOST_SILENT: usize = 64;
/// How long (ns) a session is kept.
const KEPT_FOR: u64 = 10_000_000_000;

/// See the module. Closed with [`OfferSocket::close`].
pub(super) struct OfferSocket {
    listener: Fd,
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
    /// Hidden: the segment, and its bells as [`Bells::adopt`] takes them.
    pub(super) passed: [Fd; 3],
    pub(super) connector: Relation,
    /// The connector's socket, as it says.
    pub(super) cookie: u64,
    /// The connector's user.
    pub(super) uid: u32,
    at: u64,
}

impl Offer {
    /// Nobody takes it.
    pub(super) fn close(self) {
        self.passed.into_iter().filter(|fd| *fd >= 0).for_each(hidden::close);
    }
}

fn name(entry: Entry) -> AbstractName {
    let [a, b] = entry.socket;
    AbstractName::new(format!("sanshim/2/{a:016x}{b:016x}").as_bytes())
}

/// The network namespace of a socket, as far as peer tables have to be told apart.
fn namespace_of(socket: Fd) -> u64 {
    // Before Linux 5.14: one of another namespace is not reached.
    net::namespace(socket).unwrap_or(0)
}

impl OfferSocket {
    /// Opens one in the network namespace of that socket.
    pub(super) fn open(like: Fd) -> Result<OfferSocket> {
        let (uid, namespace) = (process::euid(), namespace_of(like));
        let table = hidden::keep(peer_table::open_own(uid, namespace)?);
        let entry = Entry { socket: process::random() };
        match packet::listen(&name(entry), 4096) {
            Ok(listener) => {
                let listener = hidden::keep(listener);
                Ok(OfferSocket {
                    listener,
                    table,
                    entry,
                    namespace,
                    kept: Vec::new(),
                    silent: Vec::new(),
                })
            }
            Err(e) => {
                hidden::close(table);
                Err(e)
            }
        }
    }

    /// True if it can be used for connections of that socket's network namespace.
    pub(super) fn serves(&self, socket: Fd) -> bool {
        self.namespace == namespace_of(socket)
            && hidden::is_hidden(self.listener)
            && hidden::is_hidden(self.table)
            && peer_table::is_there(self.table)
    }

    /// Tells the peer of a connection that its other end is here.
    pub(super) fn advertise(&self, tuple: &Tuple) -> Result<()> {
        peer_table::advertise(hidden::kept(self.table), tuple, self.entry)
    }

    /// Nobody looks for its sessions from now on.
    pub(super) fn withdraw(&self, tuple: &Tuple) {
        peer_table::withdraw(hidden::kept(self.table), tuple, self.entry);
    }

    /// The session that was offered for a connection, if one was. One that `is_for_it` denies goes.
    pub(super) fn take_one(
        &mut self,
        tuple: &Tuple,
        is_for_it: impl Fn(&Offer) -> bool,
    ) -> Option<Offer> {
        self.hear();
        while let Some(at) = self.kept.iter().rposition(|one| one.tuple == *tuple) {
            let offer = self.kept.remove(at);
            if is_for_it(&offer) {
                return Some(offer);
            }
            log::info!(
                "a session that user {} offers is not for this connection, or its socket is gone",
                offer.uid
            );
            offer.close();
        }
        None
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
            let is_over = takes_in(hidden::kept(connection), heard);
            if is_over {
                hidden::close(connection);
            }
            !is_over
        });
        while self.silent.len() < MOST_SILENT {
            let Ok(connection) = net::accept(hidden::kept(self.listener), libc::SOCK_CLOEXEC)
            else {
                break;
            };
            if !may_offer(connection) || takes_in(connection, now) {
                file::close(connection);
            } else {
                self.silent.push((hidden::keep(connection), now));
            }
        }
        let surplus = self.kept.len().saturating_sub(MOST_KEPT);
        let old = self.kept.iter().take_while(|one| now - one.at > KEPT_FOR).count();
        for gone in self.kept.drain(..surplus.max(old)) {
            gone.close();
        }
    }

    /// The connection is over: what was offered for it is not taken any more.
    pub(super) fn forget(&mut self, tuple: &Tuple) {
        self.withdraw(tuple);
        if let Some(handed) = self.take_one(tuple, |_| true) {
            handed.close();
        }
    }

    /// The process does not need it any more, or it is the parent's of a fork child.
    pub(in crate::switch) fn close(self) {
        hidden::close(self.listener);
        hidden::close(self.table);
        self.silent.into_iter().for_each(|(connection, _)| hidden::close(connection));
        self.kept.into_iter().for_each(Offer::close);
    }
}

/// What a connector sent, if that makes sense. `None`: it has not sent it yet.
fn receive(connection: Fd, now: u64) -> Option<Option<Offer>> {
    let mut buffer = [0u8; Tuple::ENCODED + size_of::<u64>() + 1];
    match packet::receive_passing(connection, &mut buffer) {
        Err(Errno(libc::EAGAIN)) => None,
        Ok((n, passed)) => Some(judge(connection, decode(&buffer[..n]), passed, now)),
        Err(_) => Some(None),
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

/// The connection that a session is offered for, and the connector's socket.
fn encode(tuple: &Tuple, cookie: u64) -> Vec<u8> {
    [tuple.encode().as_slice(), &cookie.to_ne_bytes()].concat()
}

fn decode(bytes: &[u8]) -> Option<(Tuple, u64)> {
    let (tuple, cookie) = bytes.split_at_checked(Tuple::ENCODED)?;
    Some((Tuple::decode(tuple)?, u64::from_ne_bytes(cookie.try_into().ok()?)))
}

fn judge(
    connection: Fd,
    what: Option<(Tuple, u64)>,
    passed: [Option<Fd>; 3],
    now: u64,
) -> Option<Offer> {
    match (packet::peer_credentials(connection), what, passed) {
        (Ok((pid, uid)), Some((tuple, cookie)), [Some(segment), bells @ ..]) => {
            // One of another version brings no bells: that its segment says so is found out later.
            let [connectors, acceptors] = bells.map(|bell| bell.unwrap_or(-1));
            let passed = [segment, connectors, acceptors].map(hidden::keep);
            let connector = Relation::to(pid, uid);
            Some(Offer { tuple, passed, connector, cookie, uid, at: now })
        }
        _ => {
            passed.into_iter().flatten().for_each(file::close);
            None
        }
    }
}

/// Offers a session, by what is passed of it, to the process that has the acceptor's end of the connection of `socket`. Says
/// what is known of it.
///
/// # Errors
/// [`Reason::PeerNative`] if no process says that it has it, [`Reason::OtherUser`] if we must not share memory with it,
/// or it can not have it.
pub(super) fn offer(
    socket: Fd,
    tuple: &Tuple,
    session: impl FnOnce() -> std::result::Result<[Fd; 3], Reason>,
) -> std::result::Result<Relation, Reason> {
    let namespace = namespace_of(socket);
    let entry = policy::identities()
        .find_map(|uid| peer_table::find(uid, namespace, tuple))
        .ok_or(Reason::PeerNative)?;
    let fd = packet::socket(true).map_err(|_| Reason::OutOfMemory)?;
    let handed = (|| {
        packet::connect(fd, &name(entry)).map_err(|e| match e {
            // Its queue is full, which it will not be long.
            Errno(libc::EAGAIN) => Reason::Quiet,
            _ => Reason::PeerNative,
        })?;
        let (pid, uid) = packet::peer_credentials(fd).map_err(|_| Reason::PeerNative)?;
        if !policy::may_share_with(uid) {
            return Err(Reason::OtherUser);
        }
        identity::is_acceptors(socket, tuple, uid)?;
        let cookie = net::cookie(socket).map_err(|_| Reason::Unproven)?;
        let sent = packet::send_passing(fd, &encode(tuple, cookie), &session()?);
        sent.map_err(|_| Reason::PeerNative)?;
        Ok(Relation::to(pid, uid))
    })();
    file::close(fd);
    handed
}
