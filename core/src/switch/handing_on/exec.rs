//! Connections that another program gets over exec, or by posix_spawn. They go back to TCP before, with all that was
//! not read yet (D1). The program may not load this library, and a program that does begins on TCP as ever.

use crate::reason::Reason;
use crate::switch::anchor::link;
use crate::switch::back_to_tcp::detach::{self, WaitForRoom};
use crate::switch::back_to_tcp::resend_for_peer;
use crate::switch::handing_on::bring_back::{bring_back, recall_all, Ours};
use crate::switch::handing_on::substitute;
use crate::switch::setup;
use crate::switch::setup::holders;
use crate::switch::socket::holder_count::Holders;
use crate::switch::socket::phase;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::stream::Stream;
use crate::sys::process::{self, is_borrowed};
use crate::sys::{file, time, Fd};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::SeqCst;

/// How the other program comes to be.
#[derive(Clone, Copy)]
pub enum ExecWay<'a> {
    /// exec in this process, or in a vfork child of it.
    Exec,
    /// posix_spawn: libc makes a child that puts these descriptors elsewhere (dup2) and executes it.
    Spawn(&'a [Fd]),
    /// system or popen: libc makes a child, and nothing can tell that child what to do before it executes a shell.
    Shell,
}

/// An end of a connection that is over, for a child in the place of a connection that it cannot get.
#[derive(Clone, Copy)]
pub struct StandIn {
    /// Close-on-exec.
    pub end: Fd,
    /// Where the child puts it, before anything else.
    pub number: Fd,
    /// The new image has that number also if no file action says so.
    pub is_inherited: bool,
}

/// The end of another connection, which the new image gets in the place of one.
#[derive(Clone, Copy)]
struct InPlace {
    end: Fd,
    /// Where the image has it.
    number: Fd,
    /// The connection that had this number stays open beyond the exec.
    is_kept: bool,
}

/// What [`before_exec`] changed, to be put back if the exec fails.
#[derive(Default)]
pub struct Exec {
    /// To be put in the place of connections when all else is done: until then their numbers are needed.
    in_place: SmallVec<[InPlace; 4]>,
    /// Descriptors made close-on-exec, and what keeps their sockets open beyond the exec.
    kept_back: SmallVec<[(Fd, Fd); 16]>,
    /// Descriptors that refer to the end of another connection, and what they referred to.
    replaced: SmallVec<[(Fd, Fd); 4]>,
    /// The same for a child that libc makes, and what keeps the connections open in it.
    stand_ins: SmallVec<[StandIn; 4]>,
    holders: SmallVec<[Fd; 4]>,
    /// Connections that the new image will not have any more, although this process does.
    given_up: SmallVec<[Pinned; 4]>,
    /// The same of connections on TCP, with how many processes have them.
    given_up_on_tcp: SmallVec<[(Pinned, &'static Holders); 4]>,
}

/// Before exec: every connection that the new image has goes back to TCP. This changes only memory that the processes
/// of the connection share: the caller may be a vfork child.
///
/// A connection that cannot go back is kept from the image, and held open, as it would be on TCP. So is one whose
/// kernel has no room for what the peer wants again: what the image sent would come before that. In its place the image
/// gets a connection that is over. So nothing else gets that number, and the program finds an error that TCP has. Only
/// a [`Shell`](ExecWay::Shell) finds the number closed.
pub fn before_exec(way: ExecWay) -> Exec {
    let mut exec = Exec::default();
    let inherited = inherited(way);
    let becomes_it = matches!(way, ExecWay::Exec) && !is_borrowed();
    let numbers = inherited.iter().map(|(fd, _)| *fd);
    exec.given_up_on_tcp = before_image(numbers, becomes_it);
    let ours = Ours::collect();
    if ours.0.iter().all(|(socket, _)| socket.phase() == phase::LISTENER) {
        return exec;
    }
    let found = Found::of(&ours, &inherited);
    let lent = recall_all(found.iter().map(|one| (one.socket, one.here)), Reason::HandedOver);
    let began = time::now();
    let until = began + substitute::HOLDERS_TIMEOUT;
    for one in &found {
        let wait = (WaitForRoom::Moment, began);
        let stays = !exec.is_seen_to(one.here)
            && !bring_back(one.socket, one.here, Reason::HandedOver, wait);
        if stays && !(becomes_it && exec.replace(one, &found, until)) {
            exec.keep_back(one, &found, way);
            if let Some(stream) = one.socket.stream().filter(|_| becomes_it) {
                detach::look_after_to_the_end(one.socket, &stream);
            }
        }
    }
    if becomes_it {
        exec.give_up(&ours, &found);
    }
    ours.follow();
    resend_for_peer::ensure_resent(found.iter().map(|one| (one.socket.get(), one.here)), lent);
    for one in &found {
        let has_lost = |stream: Stream| substitute::look_for_loss(one.here, &stream);
        let is_kept_whole = exec.is_seen_to(one.here)
            || !one.socket.stream().is_some_and(has_lost)
            || (becomes_it && exec.replace(one, &found, until));
        if !is_kept_whole {
            exec.keep_back(one, &found, way);
        }
    }
    exec.put_in_place();
    exec
}

/// The descriptors that the new image has, by their numbers here, each with whether a file action says so.
fn inherited(way: ExecWay) -> SmallVec<[(Fd, bool); 64]> {
    let mut all: SmallVec<[(Fd, bool); 64]> = SmallVec::new();
    if let ExecWay::Spawn(duplicated) = way {
        all.extend(duplicated.iter().map(|from| (*from, true)));
    }
    let mut add = |fd| {
        if file::descriptor_flags(fd).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0) {
            all.push((fd, false));
        }
    };
    if file::each_open(&mut add).is_err() {
        // No /proc, or no descriptor left to read it by.
        table::each_socket(&mut |fd, _| add(fd));
    }
    all
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
                if socket.phase() == phase::LISTENER {
                    return None;
                }
                Some(Found { here, duplicated, socket, identity: *identity })
            })
            .collect()
    }

    /// All numbers of its connection.
    fn numbers<'b>(&'b self, all: &'b [Found]) -> impl Iterator<Item = Fd> + 'b {
        all.iter().filter(|other| other.identity == self.identity).map(|other| other.here)
    }
}

impl Exec {
    /// What a child of posix_spawn is to put in the place of connections.
    pub fn stand_ins(&self) -> &[StandIn] {
        &self.stand_ins
    }

    fn is_seen_to(&self, fd: Fd) -> bool {
        let stood_in_for = self.stand_ins.iter().map(|one| one.number);
        let replaced = self.in_place.iter().map(|one| one.number);
        let kept_back = self.kept_back.iter().map(|(number, _)| *number);
        stood_in_for.chain(replaced).chain(kept_back).any(|number| number == fd)
    }

    /// Puts the end of a connection that brings what is unread where the new image has this one.
    fn replace(&mut self, one: &Found, all: &[Found], until: u64) -> bool {
        let Some(stream) = one.socket.stream() else { return false };
        let Ok(end) = substitute::in_place_of(one.here, &stream, until) else { return false };
        let in_place = |number| InPlace { end, number, is_kept: false };
        self.in_place.extend(one.numbers(all).map(in_place));
        log::info!("fd {}: its peer is gone; another connection brings what it sent", one.here);
        true
    }

    /// Puts the ends of other connections at their numbers. From now on a look at one of these numbers finds that end, and
    /// not the connection.
    fn put_in_place(&mut self) {
        let all = std::mem::take(&mut self.in_place);
        for one in &all {
            // Without room for a descriptor the image finds the number closed.
            let Ok(before) = file::duplicate_high(one.number) else {
                self.close_on_exec(one.number);
                continue;
            };
            if !one.is_kept {
                let _ = file::set_close_on_exec(before, true);
            }
            let _ = file::put_at(one.end, one.number);
            self.replaced.push((one.number, before));
        }
        close_each(all.iter().map(|one| one.end));
    }

    /// Keeps a connection from the new image, which gets one that is over in its place where that can be made.
    fn keep_back(&mut self, one: &Found, all: &[Found], way: ExecWay) {
        let stream = one.socket.stream();
        let over = match way {
            ExecWay::Shell => None,
            ExecWay::Exec | ExecWay::Spawn(_) => {
                stream.and_then(|stream| substitute::over(one.here, &stream).ok())
            }
        };
        let Some(end) = over else {
            one.numbers(all).for_each(|number| self.close_on_exec(number));
            return;
        };
        if matches!(way, ExecWay::Exec) {
            // An image that held it until its end would count among the processes that have it for ever.
            let gone = stream.filter(|stream| substitute::is_over(one.here, stream));
            if let Some(stream) = gone.filter(|_| !is_borrowed()) {
                stream.endpoint.holders.fetch_sub(1, SeqCst);
                self.given_up.push(Pinned::new(one.socket.get()));
            }
            let in_place = |number| InPlace { end, number, is_kept: gone.is_none() };
            self.in_place.extend(one.numbers(all).map(in_place));
            return;
        }
        for number in one.numbers(all) {
            let is_inherited = all.iter().any(|one| one.here == number && !one.duplicated);
            if !self.stand_ins.iter().any(|one| one.number == number) {
                self.stand_ins.push(StandIn { end, number, is_inherited });
            }
        }
        self.holders.extend(file::duplicate_high(one.here));
    }

    /// Without room for a connection that is over.
    fn close_on_exec(&mut self, fd: Fd) {
        let flags = file::descriptor_flags(fd).unwrap_or(libc::FD_CLOEXEC);
        if flags & libc::FD_CLOEXEC != 0 {
            return;
        }
        let holder = file::duplicate_high(fd).unwrap_or(-1);
        let _ = file::set_descriptor_flags(fd, flags | libc::FD_CLOEXEC);
        self.kept_back.push((fd, holder));
    }

    /// This process holds what close-on-exec closes no longer. Its queue pairs go with it.
    fn give_up(&mut self, ours: &Ours, found: &[Found]) {
        let [goes, gone] = [link::LEAVING, link::LINGER].map(|time| time::now() + time);
        for (socket, identity) in &ours.0 {
            if found.iter().any(|one| one.identity == *identity) {
                continue;
            }
            if let Some(stream) = socket.stream() {
                let departure = stream.endpoint.depart(false);
                if !departure.is_shared {
                    detach::finish_sending(socket, &stream);
                }
                link::settle_control(&stream, || gone);
                match departure.is_shared {
                    true => link::leave_control(&stream, goes),
                    false => link::wait_until(&stream, gone),
                }
                self.given_up.push(Pinned::new(socket.get()));
            }
        }
    }

    /// The exec failed, or it was another process that made it.
    pub fn undo(self) {
        for (number, before) in &self.replaced {
            let _ = file::put_at(*before, *number);
            file::close(*before);
        }
        close_each(self.stand_ins.iter().map(|one| one.end));
        self.holders.iter().for_each(|fd| file::close(*fd));
        for (fd, holder) in &self.kept_back {
            file::close(*holder);
            if let Ok(flags) = file::descriptor_flags(*fd) {
                let _ = file::set_descriptor_flags(*fd, flags & !libc::FD_CLOEXEC);
            }
        }
        for stream in self.given_up.iter().filter_map(|socket| socket.stream()) {
            stream.endpoint.holders.fetch_add(1, SeqCst);
        }
        keep_after_all(&self.given_up_on_tcp);
    }
}

/// Closes these ends, of which several numbers in a row may have one.
fn close_each(ends: impl Iterator<Item = Fd>) {
    let mut ends: SmallVec<[Fd; 4]> = ends.collect();
    ends.dedup();
    ends.iter().for_each(|end| file::close(*end));
}

/// Before another image gets these descriptors. Where this process becomes the image, it gives up the connections that
/// the image does not get: they are the result, for [`keep_after_all`]. Otherwise those that the image gets stay on
/// TCP.
fn before_image(
    inherited: impl Iterator<Item = Fd>,
    becomes_it: bool,
) -> SmallVec<[(Pinned, &'static Holders); 4]> {
    let may_leave = |socket: &Pinned| matches!(socket.phase(), phase::FRESH | phase::TCP);
    let of = |fd: Fd| table::socket(fd).filter(may_leave);
    let inherited: SmallVec<[Pinned; 16]> = inherited.filter_map(of).collect();
    let mut given_up = SmallVec::new();
    // The image may give them to other processes, of which the library does not hear.
    for holders in inherited.iter().filter_map(|socket| holders::of(socket)) {
        holders.unname(process::owner());
    }
    if !becomes_it {
        inherited.iter().for_each(|socket| setup::stay_on_tcp(socket, Reason::HandedOver));
        return given_up;
    }
    let mut stay: SmallVec<[_; 16]> = inherited.iter().map(Pinned::address).collect();
    stay.sort_unstable();
    table::each_socket(&mut |fd, socket| {
        let goes = socket.anchor() == fd && stay.binary_search(&socket.address()).is_err();
        if let Some(holders) = holders::of(&socket).filter(|_| goes) {
            holders.unname(process::owner());
            holders.count.fetch_sub(1, SeqCst);
            given_up.push((socket, holders));
        }
    });
    given_up
}

/// It failed.
fn keep_after_all(given_up: &[(Pinned, &'static Holders)]) {
    for (_, holders) in given_up {
        holders.count.fetch_add(1, SeqCst);
        holders.name_own();
    }
}
