//! Connections go back to TCP for a use that the library does not see: by a program without the library, past its
//! hooks, or under rules that forbid it to work.

use crate::logging;
use crate::reason::Reason;
use crate::registry::Provider;
use crate::switch::back_to_tcp::detach::{self, WaitForRoom};
use crate::switch::back_to_tcp::recall;
use crate::switch::back_to_tcp::resend_for_peer::{self, PeerSockets};
use crate::switch::endpoint::flag;
use crate::switch::policy;
use crate::switch::setup;
use crate::switch::socket::phase;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::socket::unpublished;
use crate::sys::lock::FamilyLock;
use crate::sys::lock_order::LockRank;
use crate::sys::process::{is_borrowed, owner};
use crate::sys::{file, hidden, sockets_of, time, user, Fd};
use smallvec::SmallVec;

/// Before descriptors go to a process that may not load this library: true if that may use them. False: what
/// one refers to is on the SAN, and has to stay there. A peer that does not read must not stop the program, least of all one
/// with other connections to look after.
pub(in crate::switch) fn before_passing(fds: &[Fd]) -> bool {
    bring_each_back(fds, Reason::HandedOver, WaitForRoom::TenSeconds, WaitForRoom::Second)
}

/// Before this process uses a descriptor in a way that goes past the hooks: true if it may. False: what
/// it refers to is on the SAN, and has to stay there.
pub fn before_unhooked_use(fd: Fd) -> bool {
    bring_each_back(&[fd], Reason::UnseenUse, WaitForRoom::UntilDone, WaitForRoom::Second)
}

/// As [`before_passing`], for another reason, and perhaps with this process going on with them.
pub(in crate::switch) fn bring_back_for(fds: &[Fd], why: Reason, wait: WaitForRoom) -> bool {
    bring_each_back(fds, why, wait, wait)
}

/// `wait`: for a socket that blocks; `nonblocking`: for one that does not.
fn bring_each_back(fds: &[Fd], why: Reason, wait: WaitForRoom, nonblocking: WaitForRoom) -> bool {
    let is_on_san = |socket: &Pinned| socket.phase() == phase::SAN;
    for socket in fds.iter().filter_map(|fd| table::socket(*fd)) {
        setup::stay_on_tcp(&socket, why);
    }
    let known = |fd: &Fd| Some((table::socket(*fd).filter(is_on_san)?, *fd));
    let found: SmallVec<[(Pinned, Fd); 4]> = fds.iter().filter_map(known).collect();
    if found.is_empty() {
        return true;
    }
    let lent = recall_all(found.iter().map(|(socket, fd)| (socket, *fd)), why);
    let began = time::now();
    let wait_for = |socket: &Pinned| {
        let blocks = socket.stream().is_none_or(|stream| !stream.endpoint.has(flag::NONBLOCK));
        (if blocks { wait } else { nonblocking }, began)
    };
    // Each of them: all have stopped reading.
    let given = found
        .iter()
        .fold(true, |all, (socket, fd)| bring_back(socket, *fd, why, wait_for(socket)) && all);
    Ours::collect().follow();
    resend_for_peer::ensure_resent(found.iter().map(|(socket, fd)| (socket.get(), *fd)), lent);
    // Where the peer, or the helper, began the return, it is noted as one after which it may come again.
    found.iter().for_each(|(socket, _)| setup::stay_on_tcp(socket, why));
    given
}

/// Before this process forbids itself system calls (seccomp), as sshd does once it has a connection: a
/// filter made for TCP would not let us work, so connections go back to TCP while they can.
pub fn before_confinement() {
    if is_borrowed() {
        return;
    }
    unpublished::publish();
    policy::confine();
    bring_all_back(Reason::HandedOver, WaitForRoom::TenSeconds);
    // Neither is worth a system call that the filter may punish.
    logging::stop();
    user::stop_asking();
}

/// Before this process's children get numbers of another PID namespace: processes of one connection tell the living
/// from the dead by their numbers. So connections go back to TCP, and new ones stay there. True if they did not before.
pub fn before_other_pids() -> bool {
    if is_borrowed() {
        return false;
    }
    let stayed = policy::stay_on_tcp(true);
    bring_all_back(Reason::HandedOver, WaitForRoom::TenSeconds);
    !stayed
}

/// One thread at a time brings all connections back.
static BRINGING_BACK: FamilyLock<{ LockRank::BringingBack as u8 }> = FamilyLock::new();

/// In a fork child.
pub(in crate::switch) fn after_fork_in_child() {
    BRINGING_BACK.reset();
}

/// When this process has the means to use its sockets past the hooks, whichever they are: connections go back to TCP,
/// and new ones stay there. False: one cannot go back, so it must not have them.
pub fn before_unhooked_calls() -> bool {
    bring_back_for_unhooked_calls(WaitForRoom::Moment, false)
}

/// True if all connections of this process are on TCP, and new ones stay there, for such means.
pub fn has_unhooked_calls() -> bool {
    policy::has_unhooked_use()
}

/// The same where it has them anyway: new connections stay on TCP also if one cannot go back yet.
pub fn expect_unhooked_calls() {
    bring_back_for_unhooked_calls(WaitForRoom::Second, true);
}

fn bring_back_for_unhooked_calls(wait: WaitForRoom, has_them: bool) -> bool {
    if is_borrowed() || BRINGING_BACK.lock().is_err() {
        return true;
    }
    let stayed = policy::stay_on_tcp_for_unhooked_use(true);
    let ours = bring_all_back(Reason::UnseenUse, wait);
    let is_back = |(socket, _): &(Pinned, _)| socket.phase() != phase::SAN;
    let all_are_back = ours.0.iter().all(is_back);
    let stays = all_are_back || has_them;
    policy::stay_on_tcp_for_unhooked_use(stayed || stays);
    for (socket, _) in ours.0.iter().filter(|_| stays) {
        if socket.phase() == phase::LISTENER {
            socket.set_reason(Reason::UnseenUse);
            socket.statistics().set_provider(Provider::Tcp);
        }
    }
    BRINGING_BACK.unlock();
    all_are_back
}

/// The call failed for which [`before_other_pids`] changed something.
pub fn same_pids_after_all() {
    policy::stay_on_tcp(false);
}

/// All of them, each under this number, before any goes back: both ends of a connection may be among them. The peers'
/// sockets are for [`resend_for_peer::ensure_resent`].
pub(super) fn recall_all<'a>(
    sockets: impl Iterator<Item = (&'a Pinned, Fd)> + Clone,
    why: Reason,
) -> PeerSockets {
    let lent = PeerSockets::of(sockets.clone().map(|(socket, anchor)| (socket.get(), anchor)));
    for (socket, anchor) in sockets {
        if let Some(stream) = socket.stream().filter(|_| socket.phase() == phase::SAN) {
            recall::recall_unread(socket, &stream.over(anchor), why);
        }
    }
    lent
}

fn bring_all_back(why: Reason, wait: WaitForRoom) -> Ours {
    let ours = Ours::collect();
    let connections =
        || ours.0.iter().map(|(socket, _)| socket).filter(|s| s.phase() != phase::LISTENER);
    let lent = recall_all(connections().map(|socket| (socket, socket.anchor())), why);
    let began = time::now();
    for socket in connections() {
        bring_back(socket, socket.anchor(), why, (wait, began));
    }
    ours.follow();
    let returned = ours.0.iter().map(|(socket, _)| (socket.get(), socket.anchor()));
    resend_for_peer::ensure_resent(returned, lent);
    ours
}

/// The sockets of this process that another image has to know of, with their identities.
pub(super) struct Ours(pub(super) SmallVec<[(Pinned, (u64, u64)); 16]>);

impl Ours {
    pub(super) fn collect() -> Self {
        let mut all = SmallVec::new();
        table::each_socket(&mut |fd, socket| {
            let concerned = matches!(socket.phase(), phase::SAN | phase::LISTENER);
            if concerned && socket.anchor() == fd {
                // In a vfork child the number may be another file's by now.
                if let Ok(identity) = sockets_of::identity_in(owner(), fd) {
                    all.push((socket, identity));
                }
            }
        });
        Self(all)
    }

    /// The other ends that are in this process follow at once: its only thread may be about to wait
    /// for what they are to send again.
    pub(super) fn follow(&self) {
        for (socket, _) in self.0.iter().filter(|_| !is_borrowed()) {
            if let Some(stream) = socket.stream().filter(|_| socket.phase() == phase::SAN) {
                detach::look_after(socket, &stream);
            }
        }
    }

    pub(super) fn find(&self, fd: Fd) -> Option<&(Pinned, (u64, u64))> {
        if hidden::is_hidden(fd) || !file::is_socket(fd) {
            return None;
        }
        let identity = file::identity(fd).ok()?;
        self.0.iter().find(|(_, of)| *of == identity)
    }
}

/// Brings a connection back to TCP for a program that cannot read from the segment. See [`recall::bring_back`].
pub(super) fn bring_back(socket: &Pinned, fd: Fd, why: Reason, wait: (WaitForRoom, u64)) -> bool {
    let Some(stream) = socket.stream().filter(|_| socket.phase() == phase::SAN) else {
        return true;
    };
    if !recall::bring_back(socket, &stream, fd, why, wait) {
        log::error!("fd {fd}: cannot go back to TCP ({})", why.code());
        return false;
    }
    if !is_borrowed() {
        detach::look_after(socket, &stream);
    }
    true
}
