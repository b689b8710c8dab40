//! A process's offer socket: a Unix socket whose name its entries have. There connectors offer sessions for connections
//! that this process accepted. The kernel says which processes both sides are. This module does not judge what is
//! offered.

use super::callers::{encode, Callers, Offer};
use super::identity;
use super::offer_name::{self, OfferName};
use super::peer_table;
use super::peer_table::{PeerEntry, PeerTable};
use crate::reason::Reason;
use crate::switch::policy::{self, Relation};
use crate::switch::socket::names::{Names, Reach};
use crate::switch::socket::structure::Guarded;
use crate::switch::socket::tuple::Tuple;
use crate::sys::caller;
use crate::sys::listener_user;
use crate::sys::packet;
use crate::sys::user_folder::UserFolder;
use crate::sys::{file, hidden, net, process, Errno, Fd, Result};
use smallvec::SmallVec;
use std::ffi::CStr;
use std::num::NonZeroU64;

/// Connections that wait for a look.
const BACKLOG: i32 = 4096;

/// See the module. Ended with [`OfferSocket::retire`] or [`OfferSocket::leave_to_parent`].
pub(super) struct OfferSocket {
    listener: Fd,
    name: OfferName,
    /// The table of connections whose ends are in one network namespace.
    table: Fd,
    /// The table of connections whose ends are in different namespaces, where such ends may find each other.
    host_table: Option<Fd>,
    entry: PeerEntry,
    /// The network namespace that it is in.
    namespace: u64,
    callers: Callers,
}

/// This process's, once it was needed.
pub(super) static OFFER_SOCKET: Guarded<Option<OfferSocket>> = Guarded::new(None);

/// The network namespace of a socket, as far as peer tables have to be told apart.
fn namespace_of(socket: Fd) -> Result<u64> {
    // Before Linux 5.14 it is taken for the one that the program is in.
    net::namespace(socket).or_else(|_| net::current_namespace())
}

impl OfferSocket {
    /// Opens one in the network namespace of that socket.
    pub(super) fn open(like: Fd) -> Result<OfferSocket> {
        let (folder, namespace) = (UserFolder::make_in(policy::folder())?, namespace_of(like)?);
        let open = |table| peer_table::open_own(&folder, table).map(hidden::keep);
        let table = open(PeerTable::Namespace(namespace))?;
        let host_table = policy::crosses_namespaces().then(|| open(PeerTable::Host)).transpose();
        let entry = PeerEntry { socket: process::random() };
        let opened = host_table.and_then(|host_table| {
            let listening = listen(&folder, entry);
            listening.map(|listening| (host_table, listening)).inspect_err(|_| {
                host_table.into_iter().for_each(hidden::close);
            })
        });
        let (host_table, (listener, name)) = opened.inspect_err(|_| hidden::close(table))?;
        let callers = Callers::default();
        Ok(OfferSocket { listener, name, table, host_table, entry, namespace, callers })
    }

    /// True if it can be used for connections of that socket's network namespace.
    pub(super) fn serves(&self, socket: Fd) -> bool {
        namespace_of(socket) == Ok(self.namespace)
            && hidden::is_hidden(self.listener)
            && self.tables().all(|table| hidden::is_hidden(table) && peer_table::is_there(table))
            && self.name.is_there()
    }

    fn tables(&self) -> impl Iterator<Item = Fd> {
        std::iter::once(self.table).chain(self.host_table)
    }

    /// Where entries of so far a reach are.
    fn table(&self, reach: Reach) -> Option<Fd> {
        match reach {
            Reach::Namespace => Some(hidden::kept(self.table)),
            Reach::Host => self.host_table.map(hidden::kept),
        }
    }

    /// Tells the peer of a connection that its other end is here.
    pub(super) fn advertise(&self, names: Names) -> Result<()> {
        names.each().try_for_each(|(reach, name)| match self.table(reach) {
            Some(table) => peer_table::advertise(table, &name, self.entry),
            None => Ok(()),
        })
    }

    /// No acceptor looks for the session from now on.
    pub(super) fn withdraw(&self, names: Names) {
        for (reach, name) in names.each() {
            if let Some(table) = self.table(reach) {
                peer_table::withdraw(table, &name, self.entry);
            }
        }
    }

    /// The session that was offered for a connection, if one was. One that `is_for_it` denies goes.
    pub(super) fn take_one(
        &mut self,
        names: Names,
        is_for_it: impl Fn(&Offer) -> bool,
    ) -> Option<Offer> {
        self.callers.hear(hidden::kept(self.listener));
        self.callers.take(names, is_for_it)
    }

    /// The connection is over: what was offered for it is not taken any more.
    pub(super) fn forget(&mut self, names: Names) {
        self.withdraw(names);
        if let Some(handed) = self.take_one(names, |_| true) {
            handed.close();
        }
    }

    /// The process does not need it any more, or connectors no longer find it.
    pub(super) fn retire(self) {
        self.name.remove();
        self.tables().for_each(hidden::close);
        self.name.close();
        self.callers.close();
        caller::close_listener(self.listener);
    }

    /// The process exits.
    pub(super) fn exiting(&self) {
        self.name.remove();
    }

    /// Called in a fork child: the socket is the parent's, which goes on to use it.
    pub(in crate::switch) fn leave_to_parent(self) {
        self.tables().for_each(hidden::close);
        self.name.close();
        self.callers.forget();
        hidden::close(self.listener);
    }
}

/// Opens a socket of the name that an entry says, for processes that may share memory with this one.
fn listen(folder: &UserFolder, entry: PeerEntry) -> Result<(Fd, OfferName)> {
    let (socket, name) = OfferName::bind(folder, entry.socket)?;
    let own = process::euid();
    let mut others: Vec<u32> = policy::identities().filter(|uid| *uid != own).collect();
    others.sort_unstable();
    others.dedup();
    if let Err(e) = name.admit(&others) {
        log::info!("connectors of the users {others:?} do not reach this process: {e}");
    }
    match caller::announce(socket).and_then(|()| net::listen(socket, BACKLOG)) {
        Ok(()) => Ok((hidden::keep(socket), name)),
        Err(e) => {
            file::close(socket);
            name.remove();
            name.close();
            Err(e)
        }
    }
}

/// Offers a session, by what is passed of it, to the process that has the acceptor's end of the connection of `socket`. Says
/// what is known of it. `session` learns whether no address tells that its connection is this one.
///
/// # Errors
/// [`Reason::PeerNative`] if no process says that it has it, [`Reason::OtherUser`] if we must not share memory with it,
/// or it can not have it.
pub(super) fn offer(
    socket: Fd,
    tuple: &Tuple,
    names: Names,
    session: impl FnOnce(bool) -> std::result::Result<[Fd; 3], Reason>,
) -> std::result::Result<Relation, Reason> {
    let (folder, lead) = find(socket, names).ok_or(Reason::PeerNative)?;
    let fd = packet::deaf_socket().map_err(|_| Reason::OutOfMemory)?;
    let handed = (|| {
        let connected = offer_name::connect(folder, fd, lead.owner, lead.entry.socket);
        connected.map_err(|e| match e {
            // Its queue is full, which it will not be long.
            Errno(libc::EAGAIN) => Reason::Quiet,
            Errno(libc::EACCES) => Reason::OtherUser,
            _ => Reason::PeerNative,
        })?;
        let (pid, uid) = packet::peer_credentials(fd).map_err(|_| Reason::PeerNative)?;
        if !policy::may_share_with(uid) {
            return Err(Reason::OtherUser);
        }
        let is_apart = match lead.reach {
            Reach::Host => true,
            Reach::Namespace if lead.name != *tuple => true,
            Reach::Namespace => {
                match identity::is_acceptors(socket, tuple, uid, || listener_user::of(fd)) {
                    // Its address is translated, if the kernel has no such end; or a server that gave up root hides what it is.
                    Err(Reason::Unproven) => true,
                    known => known.map(|()| false)?,
                }
            }
        };
        let cookie = net::cookie(socket).map_err(|_| Reason::Unproven)?;
        let cookie = NonZeroU64::new(cookie).filter(|_| !is_apart);
        let sent = packet::send_passing(fd, &encode(&lead.name, cookie), &session(is_apart)?);
        sent.map_err(|_| Reason::PeerNative)?;
        let peer = Relation::to(pid, uid);
        Ok(if is_apart { peer.seen_apart() } else { peer })
    })();
    file::close(fd);
    handed
}

/// An entry that leads to the other end of a connection, perhaps.
struct Lead {
    /// The user in whose table it is.
    owner: u32,
    reach: Reach,
    name: Tuple,
    entry: PeerEntry,
}

/// Looks for the other end of a connection that was made. Also says where the users have their folders.
fn find(socket: Fd, names: Names) -> Option<(&'static CStr, Lead)> {
    let (namespace, folder) = (namespace_of(socket).ok()?, policy::folder());
    let lead = [Reach::Namespace, Reach::Host].into_iter().find_map(|reach| {
        let table = match reach {
            Reach::Namespace => PeerTable::Namespace(namespace),
            Reach::Host => PeerTable::Host,
        };
        let these: SmallVec<[Tuple; 8]> = names.in_reach(reach).collect();
        let mut owners = policy::identities().filter(|_| !these.is_empty());
        owners.find_map(|owner| {
            let (name, entry) = peer_table::find(folder, owner, table, &these)?;
            Some(Lead { owner, reach, name, entry })
        })
    });
    lead.map(|lead| (folder, lead))
}
