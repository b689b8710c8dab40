//! A process's offer socket: a Unix socket whose name its entries say. There connectors offer sessions for connections
//! that this process accepted. The kernel says who both sides are. Must not judge what is offered.

use super::callers::{encode, Callers, Offer};
use super::identity;
use super::offer_name::{self, OfferName};
use super::peer_table;
use super::peer_table::Entry;
use crate::reason::Reason;
use crate::switch::policy::{self, Relation};
use crate::switch::socket::structure::Guarded;
use crate::switch::socket::tuple::Tuple;
use crate::sys::caller;
use crate::sys::packet;
use crate::sys::user_folder::UserFolder;
use crate::sys::{file, hidden, net, process, Errno, Fd, Result};

/// Connections that wait for a look.
const BACKLOG: i32 = 4096;

/// See the module. Ended with [`OfferSocket::retire`] or [`OfferSocket::leave_to_parent`].
pub(super) struct OfferSocket {
    listener: Fd,
    name: OfferName,
    table: Fd,
    entry: Entry,
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
        let (folder, namespace) = (UserFolder::make()?, namespace_of(like)?);
        let table = hidden::keep(peer_table::open_own(&folder, namespace)?);
        let entry = Entry { socket: process::random() };
        match listen(&folder, entry) {
            Ok((listener, name)) => Ok(OfferSocket {
                listener,
                name,
                table,
                entry,
                namespace,
                callers: Callers::default(),
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
        self.callers.hear(hidden::kept(self.listener));
        self.callers.take(tuple, is_for_it)
    }

    /// The connection is over: what was offered for it is not taken any more.
    pub(super) fn forget(&mut self, tuple: &Tuple) {
        self.withdraw(tuple);
        if let Some(handed) = self.take_one(tuple, |_| true) {
            handed.close();
        }
    }

    /// The process does not need it any more, or nobody finds it.
    pub(super) fn retire(self) {
        self.name.remove();
        self.name.close();
        hidden::close(self.table);
        self.callers.close();
        caller::close_listener(self.listener);
    }

    /// The process exits.
    pub(super) fn exiting(&self) {
        self.name.remove();
    }

    /// In a fork child: it is the parent's, who goes on to use it.
    pub(in crate::switch) fn leave_to_parent(self) {
        self.name.close();
        hidden::close(self.table);
        self.callers.forget();
        hidden::close(self.listener);
    }
}

/// A socket of the name that an entry says, for whoever may share memory with this process.
fn listen(folder: &UserFolder, entry: Entry) -> Result<(Fd, OfferName)> {
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
        identity::is_acceptors(socket, tuple, uid)?;
        let cookie = net::cookie(socket).map_err(|_| Reason::Unproven)?;
        let sent = packet::send_passing(fd, &encode(tuple, cookie), &session()?);
        sent.map_err(|_| Reason::PeerNative)?;
        Ok(Relation::to(pid, uid))
    })();
    file::close(fd);
    handed
}
