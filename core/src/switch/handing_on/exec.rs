//! Connections that another program gets: over exec, by posix_spawn, or in a message ([`passing`](crate::switch::handing_on::passing)).
//!
//! A program that loads this library goes on where this one was: what it needs is left to it
//! ([`manifest`], [`adopt`](crate::switch::handing_on::adopt)). Another one would take doorbells for data, so for that
//! the connection goes back to TCP before (D1), all that was not read yet included.

use crate::logging;
use crate::reason::Reason;
use crate::registry::Provider;
use crate::switch::anchor::native;
use crate::switch::anchor::returning;
use crate::switch::back_to_tcp::detach::{self, WaitForRoom};
use crate::switch::back_to_tcp::stand_in;
use crate::switch::endpoint::flag;
use crate::switch::endpoint::memory::Memory;
use crate::switch::handing_on::image::Program;
use crate::switch::handing_on::manifest::{self, Entry};
use crate::switch::handing_on::remains;
use crate::switch::handing_on::trust;
use crate::switch::policy;
use crate::switch::setup;
use crate::switch::setup::holders;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::socket::{phase, Socket};
use crate::sys::lock::FamilyLock;
use crate::sys::process::{is_borrowed, owner};
use crate::sys::{file, hidden, net, time, user, Fd};
use smallvec::SmallVec;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How the other program comes to be.
#[derive(Clone, Copy)]
pub enum Way<'a> {
    /// exec in this process, or in a vfork child of it.
    Exec,
    /// posix_spawn: libc makes a child that carries out file actions, and exec.
    Spawn(&'a Actions),
    /// The same, where nothing can be added to the actions, or not all of them are known.
    Unseen(&'a Actions),
}

/// What posix_spawn's file actions do to descriptors.
#[derive(Default)]
pub struct Actions {
    /// dup2: from, to.
    pub duplicated: Vec<(Fd, Fd)>,
    /// Numbers that are closed, or become other files.
    pub replaced: Vec<Fd>,
}

/// What [`before_exec`] changed, to be put back if the exec fails.
#[derive(Default)]
pub struct Exec {
    /// Descriptors made close-on-exec, and what keeps their sockets open beyond the exec.
    kept_back: SmallVec<[(Fd, Fd); 16]>,
    /// Descriptors that refer to the end of another connection, and what they referred to.
    replaced: SmallVec<[(Fd, Fd); 4]>,
    left: Left,
    /// Connections that the new image will not have any more, although this process does.
    given_up: SmallVec<[Pinned; 4]>,
    /// The same of connections on TCP, with how many processes have them.
    given_up_on_tcp: SmallVec<[(Pinned, &'static AtomicU32); 4]>,
}

/// What is left to the new image.
#[derive(Default)]
struct Left {
    sockets: SmallVec<[&'static Socket; 4]>,
    /// Of the sockets, where the memory is only ours: a vfork child would leave them to its parent.
    pins: SmallVec<[Pinned; 4]>,
    fds: SmallVec<[Fd; 16]>,
    manifest: Option<Fd>,
    /// Where the new image finds the manifest.
    number: Fd,
    /// Every one is one more holder of its connection.
    added: bool,
    /// They are close-on-exec no longer, and the manifest is in its place.
    in_place: bool,
}

impl Way<'_> {
    /// True if what is left to the new image is still there when that begins.
    fn leaves_hidden_alone(&self) -> bool {
        match self {
            Way::Exec => true,
            Way::Spawn(actions) => {
                let concerns = |fd: &Fd| hidden::may_be(*fd) || manifest::NUMBERS.contains(fd);
                !actions.replaced.iter().any(concerns)
            }
            Way::Unseen(_) => false,
        }
    }
}

/// Before exec: every connection that the new image has is left to it, or goes back to TCP. Changes
/// of memory only what the processes of the connection share: the caller may be a vfork child.
///
/// A connection that can neither stay nor go back is kept from the image, which finds that out at
/// once (EBADF), and held open, as it would be on TCP.
pub fn before_exec(program: &Program, way: Way) -> Exec {
    let mut exec = Exec::default();
    let inherited = inherited(way);
    hand_on_unix(program, &inherited);
    let becomes_it = matches!(way, Way::Exec) && !is_borrowed();
    let numbers = inherited.iter().map(|(fd, _)| *fd);
    exec.given_up_on_tcp = holders::before_image(numbers, becomes_it);
    let ours = Ours::collect();
    if ours.0.is_empty() {
        return exec;
    }
    let found = Found::of(&ours, &inherited);
    if program.is_missing() && found.iter().all(|one| !one.duplicated) {
        // It will fail; should the file appear now, the new image finds nothing it could misread.
        for one in &found {
            exec.keep_back(one.here);
        }
        return exec;
    }
    let others = exec.left.try_all(program, way, &found);
    abandon_all(others.iter().map(|one| one.socket), Reason::HandedOver);
    let until = time::now() + remains::PATIENCE;
    for one in &others {
        let stays = !exec.is_seen_to(one.here)
            && !give(one.socket, one.here, Reason::HandedOver, WaitForRoom::Whole);
        if stays && !one.duplicated && !(becomes_it && exec.replace(one, &others, until)) {
            exec.keep_back(one.here);
        }
    }
    if becomes_it {
        exec.give_up(&ours, &found);
    }
    ours.follow();
    stand_in::see_to(others.iter().map(|one| (one.socket.get(), one.here)));
    exec
}

/// Before descriptors go to a process that may not load this library: true if that may use them. False: what
/// one refers to is on the SAN, and has to stay there.
pub(in crate::switch) fn pass(fds: &[Fd]) -> bool {
    pass_because(fds, Reason::HandedOver, WaitForRoom::Whole)
}

/// Before this process uses a descriptor in a way that goes past the hooks: true if it may. False: what
/// it refers to is on the SAN, and has to stay there.
pub fn before_unseen_use(fd: Fd) -> bool {
    pass_because(&[fd], Reason::UnseenUse, WaitForRoom::Whole)
}

/// As [`pass`], for another reason, and perhaps with this process going on with them.
pub(in crate::switch) fn pass_because(fds: &[Fd], why: Reason, wait: WaitForRoom) -> bool {
    let on_offer = |socket: &Pinned| matches!(socket.phase(), phase::SAN | phase::CONNECTING);
    for socket in fds.iter().filter_map(|fd| table::socket(*fd)) {
        setup::stay_on_tcp(&socket);
    }
    let known = |fd: &Fd| Some((table::socket(*fd).filter(on_offer)?, *fd));
    let found: SmallVec<[(Pinned, Fd); 4]> = fds.iter().filter_map(known).collect();
    if found.is_empty() {
        return true;
    }
    abandon_all(found.iter().map(|(socket, _)| socket), why);
    // Each of them: all have stopped reading.
    let given = found.iter().fold(true, |all, (socket, fd)| give(socket, *fd, why, wait) && all);
    Ours::collect().follow();
    stand_in::see_to(found.iter().map(|(socket, fd)| (socket.get(), *fd)));
    given
}

/// Unix sockets that a program without this library gets are trusted no more.
fn hand_on_unix(program: &Program, inherited: &[(Fd, bool)]) {
    let unix = || inherited.iter().map(|(fd, _)| *fd).filter(|fd| trust::is_stream(*fd));
    if unix().next().is_some() && !program.is_missing() && !program.loads_library() {
        unix().for_each(trust::distrust);
    }
}

/// The descriptors that the new image has, by their numbers here, each with whether a file action says so.
fn inherited(way: Way) -> SmallVec<[(Fd, bool); 64]> {
    let mut all: SmallVec<[(Fd, bool); 64]> = SmallVec::new();
    if let Way::Spawn(actions) | Way::Unseen(actions) = way {
        all.extend(actions.duplicated.iter().map(|(from, _)| (*from, true)));
    }
    let _ = file::each_open(|fd| {
        if file::descriptor_flags(fd).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0) {
            all.push((fd, false));
        }
    });
    all
}

/// Brings a connection that the image before this one left back to TCP, for a use that is not seen.
pub fn give_back(fd: Fd) {
    let stays = |socket: &Pinned| !give(socket, fd, Reason::HandedOver, WaitForRoom::Whole);
    let Some(socket) = table::san(fd) else { return };
    if stays(&socket) {
        // Never may anybody take doorbells for data.
        let _ = net::shutdown(socket.anchor(), libc::SHUT_RDWR);
    }
    stand_in::see_to(std::iter::once((socket.get(), fd)));
}

/// Before this process forbids itself system calls (seccomp), as sshd does once it has a connection: a
/// filter made for TCP would not let us work, so connections go back to TCP while they can.
pub fn before_confinement() {
    if is_borrowed() {
        return;
    }
    trust::distrust_all();
    policy::confine();
    give_all(Reason::HandedOver, WaitForRoom::Whole);
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
    give_all(Reason::HandedOver, WaitForRoom::Whole);
    !stayed
}

/// One thread at a time brings all connections back.
static BRINGING_BACK: FamilyLock = FamilyLock::new();

/// In a fork child.
pub(in crate::switch) fn after_fork_in_child() {
    BRINGING_BACK.reset();
}

/// When this process has the means to use its sockets past the hooks, whichever they are: connections go back to TCP,
/// new ones stay there, and nobody finds its listeners any more. False: one cannot go back, so it must not have them.
pub fn before_unseen_calls() -> bool {
    if is_borrowed() || BRINGING_BACK.lock().is_err() {
        return true;
    }
    let stayed = policy::stay_on_tcp_unseen(true);
    let ours = give_all(Reason::UnseenUse, WaitForRoom::Moment);
    let is_back = |(socket, _): &(Pinned, _)| socket.phase() != phase::SAN;
    let all_are_back = ours.0.iter().all(is_back);
    policy::stay_on_tcp_unseen(stayed || all_are_back);
    for (socket, _) in ours.0.iter().filter(|_| all_are_back) {
        if let Some(listener) = socket.listener() {
            listener.retire();
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

/// All of them before any goes back: both ends of a connection may be among them.
fn abandon_all<'a>(sockets: impl Iterator<Item = &'a Pinned>, why: Reason) {
    for socket in sockets {
        if let Some(stream) = socket.stream().filter(|_| socket.phase() == phase::SAN) {
            detach::abandon(socket, &stream, why);
        }
    }
}

fn give_all(why: Reason, wait: WaitForRoom) -> Ours {
    let ours = Ours::collect();
    let connections = || ours.0.iter().map(|(socket, _)| socket).filter(|s| s.listener().is_none());
    abandon_all(connections(), why);
    for socket in connections() {
        give(socket, socket.anchor(), why, wait);
    }
    ours.follow();
    stand_in::see_to(ours.0.iter().map(|(socket, _)| (socket.get(), socket.anchor())));
    ours
}

/// The sockets of this process that another image has to know of, with their identities.
struct Ours(SmallVec<[(Pinned, (u64, u64)); 16]>);

impl Ours {
    fn collect() -> Self {
        let mut all = SmallVec::new();
        table::each_socket(0, Fd::MAX - 1, |fd, socket| {
            let concerned =
                matches!(socket.phase(), phase::SAN | phase::CONNECTING | phase::LISTENER);
            if concerned && socket.anchor() == fd {
                // In a vfork child the number may be another file's by now.
                if let Ok(identity) = file::identity_in(owner(), fd) {
                    all.push((socket, identity));
                }
            }
        });
        Self(all)
    }

    /// The other ends that are in this process follow at once: its only thread may be about to wait
    /// for what they are to send again.
    fn follow(&self) {
        for (socket, _) in self.0.iter().filter(|_| !is_borrowed()) {
            if let Some(stream) = socket.stream().filter(|_| socket.phase() == phase::SAN) {
                detach::look_after(socket, &stream);
            }
        }
    }

    fn find(&self, fd: Fd) -> Option<&(Pinned, (u64, u64))> {
        if hidden::is_hidden(fd) || !file::is_socket(fd) {
            return None;
        }
        let identity = file::identity(fd).ok()?;
        self.0.iter().find(|(_, of)| *of == identity)
    }
}

/// A descriptor that the new image has.
#[derive(Clone, Copy)]
struct Found<'a> {
    /// Its number here.
    here: Fd,
    /// The new image has it because a file action says so.
    duplicated: bool,
    socket: &'a Pinned,
    identity: (u64, u64),
}

impl<'a> Found<'a> {
    fn of(ours: &'a Ours, inherited: &[(Fd, bool)]) -> SmallVec<[Found<'a>; 16]> {
        inherited
            .iter()
            .filter_map(|&(here, duplicated)| {
                let (socket, identity) = ours.find(here)?;
                Some(Found { here, duplicated, socket, identity: *identity })
            })
            .collect()
    }
}

impl Left {
    /// Leaves what can be left to the program; gives back the others, listeners excepted: what these accept there is on
    /// TCP.
    fn try_all<'a>(
        &mut self,
        program: &Program,
        way: Way,
        found: &[Found<'a>],
    ) -> SmallVec<[Found<'a>; 16]> {
        let mut entries: SmallVec<[Entry; 4]> = SmallVec::new();
        let mut remaining: SmallVec<[Found<'a>; 16]> = SmallVec::from_slice(found);
        let may = !found.is_empty()
            && way.leaves_hidden_alone()
            && program.loads_library()
            && !inherits_a_set();
        if may {
            for one in found {
                if entries.iter().any(|entry| entry.identity() == one.identity) {
                    continue;
                }
                if let Some(entry) = entry(one.socket, one.identity) {
                    self.fds.extend_from_slice(entry.fds());
                    entries.push(entry);
                    self.sockets.push(one.socket.get());
                    if !is_borrowed() {
                        self.pins.push(Pinned::new(one.socket.get()));
                    }
                }
            }
            if entries.is_empty() || self.place(&entries, way) {
                let left = |one: &Found| entries.iter().any(|e| e.identity() == one.identity);
                remaining.retain(|one| !left(one));
                self.share(way);
            } else {
                *self = Left::default();
            }
        }
        remaining.retain(|one| one.socket.phase() != phase::LISTENER);
        remaining
    }

    /// Puts the manifest where the new image finds it, and lets the descriptors survive.
    fn place(&mut self, entries: &[Entry], way: Way) -> bool {
        let Ok(fd) = manifest::write(entries).map(file::move_high) else { return false };
        if !hidden::may_be(fd) {
            file::close(fd);
            return false;
        }
        let is_free = |number: &Fd| file::check_open(*number).is_err();
        let number = match way {
            Way::Exec => manifest::NUMBERS.into_iter().find(|n| file::duplicate_to(fd, *n).is_ok()),
            _ => manifest::NUMBERS.into_iter().find(is_free),
        };
        let Some(number) = number else {
            file::close(fd);
            return false;
        };
        self.number = number;
        self.manifest = Some(fd);
        if matches!(way, Way::Exec) {
            self.in_place = true;
            for fd in &self.fds {
                let _ = file::set_close_on_exec(*fd, false);
            }
        }
        true
    }

    /// From now on another image may have the connections' memory mapped.
    fn share(&mut self, way: Way) {
        self.added = matches!(way, Way::Spawn(_)) || is_borrowed();
        for socket in &self.sockets {
            let Some(stream) = socket.stream() else { continue };
            Memory::share(stream.endpoint);
            if self.added {
                stream.endpoint.holders.fetch_add(1, SeqCst);
            }
        }
    }

    fn undo(self, failed: bool) {
        if self.in_place {
            file::close(self.number);
            for fd in &self.fds {
                let _ = file::set_close_on_exec(*fd, true);
            }
        }
        if let Some(manifest) = self.manifest {
            file::close(manifest);
        }
        if failed && self.added {
            for stream in self.sockets.iter().filter_map(|socket| socket.stream()) {
                stream.endpoint.holders.fetch_sub(1, SeqCst);
            }
        }
    }
}

/// What another image or process needs for a socket; `None` if it can not have it.
pub(in crate::switch) fn entry(socket: &Socket, identity: (u64, u64)) -> Option<Entry> {
    let has_options = socket.has_options.load(Relaxed);
    if socket.phase() == phase::LISTENER {
        let fds = [socket.listener()?.within_reach()?];
        return Some(Entry::Listener { identity, fds, has_options });
    }
    let stream = socket.stream()?;
    let is_settled = !socket.is_pending()
        && !returning::is_begun(&stream)
        && !stream.endpoint.has(flag::SENDS_TCP | flag::RECEIVES_TCP);
    if socket.phase() != phase::SAN || !is_settled || stream.fabric.is_some() {
        return None;
    }
    let fds = socket.within_reach()?;
    fds.iter().all(|fd| hidden::is_hidden(*fd)).then_some(Entry::Connection {
        identity,
        fds,
        has_options,
    })
}

/// True if the new image has an epoll set that may watch sockets: it would know nothing of those.
fn inherits_a_set() -> bool {
    let mut any = false;
    table::each_known(0, Fd::MAX - 1, |fd| {
        any |= table::set(fd).is_some()
            && file::descriptor_flags(fd).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0);
    });
    any
}

/// Brings a connection back to TCP for who can not read from the segment.
fn give(socket: &Pinned, fd: Fd, why: Reason, wait: WaitForRoom) -> bool {
    if socket.phase() == phase::CONNECTING {
        crate::switch::setup::establish(socket.get());
        // The books are changed at once, so the descriptor must be the one in them.
        let same = || file::identity(fd) == file::identity(socket.anchor());
        if socket.phase() == phase::CONNECTING && same() && native::withdraw(socket) {
            return true;
        }
    }
    let Some(stream) = socket.stream().filter(|_| socket.phase() == phase::SAN) else {
        return true;
    };
    if !detach::give(socket, &stream, fd, why, wait) {
        log::error!("fd {fd}: cannot go back to TCP ({})", why.code());
        return false;
    }
    if !is_borrowed() {
        detach::look_after(socket, &stream);
    }
    true
}

impl Exec {
    /// What a spawn has to do in the child beside the program's own file actions: dup2 (from, to),
    /// where the same number twice means that it is not close-on-exec any more.
    pub fn actions(&self) -> impl Iterator<Item = (Fd, Fd)> + '_ {
        let manifest = self.left.manifest.map(|fd| (fd, self.left.number));
        let left = if manifest.is_some() { &self.left.fds[..] } else { &[] };
        left.iter().map(|fd| (*fd, *fd)).chain(manifest)
    }

    fn is_seen_to(&self, fd: Fd) -> bool {
        self.replaced.iter().chain(&self.kept_back).any(|(number, _)| *number == fd)
    }

    /// Puts the end of a connection that brings what is unread where the new image has this one.
    fn replace(&mut self, one: &Found, all: &[Found], until: u64) -> bool {
        let Some(stream) = one.socket.stream() else { return false };
        let Ok(end) = remains::in_place_of(one.here, &stream, until) else { return false };
        for number in all.iter().filter(|o| o.identity == one.identity).map(|o| o.here) {
            match file::duplicate_high(number) {
                Ok(before) => {
                    let _ = file::set_close_on_exec(before, true);
                    let _ = file::put_at(end, number);
                    self.replaced.push((number, before));
                }
                Err(_) => self.keep_back(number),
            }
        }
        file::close(end);
        log::info!("fd {}: its peer is gone; another connection brings what it sent", one.here);
        true
    }

    fn keep_back(&mut self, fd: Fd) {
        let flags = file::descriptor_flags(fd).unwrap_or(libc::FD_CLOEXEC);
        let holder = file::duplicate_high(fd).unwrap_or(-1);
        let _ = file::set_descriptor_flags(fd, flags | libc::FD_CLOEXEC);
        self.kept_back.push((fd, holder));
    }

    /// This process holds what close-on-exec closes no longer.
    fn give_up(&mut self, ours: &Ours, found: &[Found]) {
        for (socket, identity) in &ours.0 {
            if found.iter().any(|one| one.identity == *identity) {
                continue;
            }
            if let Some(stream) = socket.stream() {
                if stream.endpoint.holders.fetch_sub(1, SeqCst) == 1 {
                    detach::look_after_whole(socket, &stream, WaitForRoom::Whole);
                }
                self.given_up.push(Pinned::new(socket.get()));
            }
        }
    }

    /// The exec failed, or it was another process that made it: `failed` says which.
    pub fn undo(self, failed: bool) {
        for (number, before) in &self.replaced {
            let _ = file::put_at(*before, *number);
            file::close(*before);
        }
        for (fd, holder) in &self.kept_back {
            file::close(*holder);
            if let Ok(flags) = file::descriptor_flags(*fd) {
                let _ = file::set_descriptor_flags(*fd, flags & !libc::FD_CLOEXEC);
            }
        }
        for stream in self.given_up.iter().filter_map(|socket| socket.stream()) {
            stream.endpoint.holders.fetch_add(1, SeqCst);
        }
        holders::keep_after_all(&self.given_up_on_tcp);
        self.left.undo(failed);
    }
}
