//! Descriptors that a message brings: sockets that go on over the SAN here ([`passing`](crate::switch::handing_on::passing)).
//!
//! What was sent along is taken off again, so that the program finds what was meant for it, as the kernel would
//! have given it. Whoever sent the message may be hostile: only memory that a process of this very user made is
//! mapped as our end's, and everything is checked as what another image leaves is.

use crate::provider::shm::Segment;
use crate::reason::Reason;
use crate::switch::back_to_tcp::detach::{self, WaitForRoom};
use crate::switch::back_to_tcp::stand_in;
use crate::switch::descriptors::lifecycle;
use crate::switch::endpoint::flag;
use crate::switch::endpoint::memory::Memory;
use crate::switch::handing_on::adopt;
use crate::switch::handing_on::crowded::{self, Look};
use crate::switch::handing_on::manifest::{self, Carried, Entry};
use crate::switch::handing_on::passing::is_made_by_us;
use crate::switch::handing_on::trust;
use crate::switch::policy;
use crate::switch::socket::arrivals;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::socket::{phase, Socket};
use crate::sys::control::{self, Room, Writer};
use crate::sys::lock::FamilyLock;
use crate::sys::process::is_borrowed;
use crate::sys::user::{self, Access};
use crate::sys::{file, hidden, net, packet, poll, Fd};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::SeqCst;

const SCM_PIDFD: i32 = 4;

/// True if a message received there may bring descriptors that are not only the program's. From now on it does,
/// if only processes with this library have the socket.
pub fn asks(fd: Fd, message: *const libc::msghdr) -> bool {
    let Ok(header) = user::read(message) else { return false };
    let length = header.msg_controllen;
    let asks = length > 0
        && !header.msg_control.is_null()
        && !is_borrowed()
        && !policy::is_confined()
        && trust::is_unix(fd)
        && user::check(message.cast(), size_of::<libc::msghdr>(), Access::Write).is_ok()
        && user::check(header.msg_control.cast(), length, Access::Write).is_ok();
    if asks {
        trust::ask(fd);
    }
    asks
}

/// Receives a message with `real`, where [`asks`] says so: as the kernel would have given it.
///
/// # Safety
/// The message is the program's, and stays as it is during the call.
pub unsafe fn receive(
    fd: Fd,
    message: *mut libc::msghdr,
    flags: i32,
    real: impl Fn(*mut libc::msghdr, i32) -> isize,
) -> isize {
    let mut room = Room([0; 4096]);
    // SAFETY: the caller's promise.
    let given = unsafe { message.read_unaligned() };
    let cut = match crowded::prepare(fd, flags, &real) {
        Look::Failed(result) => return result,
        Look::Fits => None,
        Look::Cut(cut) => Some(cut),
    };
    let mut own = libc::msghdr {
        msg_control: room.0.as_mut_ptr().cast(),
        msg_controllen: room.0.len(),
        ..given
    };
    // Until it is known what is whose no other program may inherit it.
    let received = real(&mut own, flags | libc::MSG_CMSG_CLOEXEC);
    if received < 0 {
        return received;
    }
    // SAFETY: checked to be writable by `asks`.
    let to = unsafe {
        std::slice::from_raw_parts_mut(given.msg_control.cast::<u8>(), given.msg_controllen)
    };
    let mut writer = Writer::new(to);
    let keeps = flags & libc::MSG_CMSG_CLOEXEC != 0;
    let _ = control::each(&room.0[..own.msg_controllen], |level, kind, data| {
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                let mut fds: SmallVec<[Fd; 16]> = control::descriptors(data).collect();
                if !take(&mut fds, flags & libc::MSG_PEEK != 0) {
                    if let Some(all) = cut.as_ref().and_then(|cut| cut.take_off(&mut fds)) {
                        own.msg_flags &= if all { !libc::MSG_CTRUNC } else { !0 };
                    }
                }
                deliver(&mut writer, &fds, keeps);
            }
            // One without room is not made.
            (libc::SOL_SOCKET, SCM_PIDFD) if writer.left() < control::HEADER + data.len() => {
                control::descriptors(data).for_each(file::close);
                writer.truncated = true;
            }
            _ => writer.put(level, kind, data),
        }
    });
    let truncated = if writer.truncated { libc::MSG_CTRUNC } else { 0 };
    let used = given.msg_controllen - writer.left();
    let asked = if keeps { 0 } else { libc::MSG_CMSG_CLOEXEC };
    // SAFETY: the caller's promise.
    unsafe {
        (*message).msg_namelen = own.msg_namelen;
        (*message).msg_controllen = used;
        (*message).msg_flags = own.msg_flags & !asked | truncated;
    }
    received
}

/// Gives the program as many of its descriptors as it has room for.
fn deliver(writer: &mut Writer, fds: &[Fd], close_on_exec: bool) {
    let delivered = writer.put_rights(fds);
    for (i, fd) in fds.iter().enumerate() {
        if i >= delivered {
            if table::is_known(*fd) {
                lifecycle::closing(*fd);
            }
            file::close(*fd);
        } else if !close_on_exec {
            let _ = file::set_close_on_exec(*fd, false);
        }
    }
}

/// Of a message's descriptors, takes those that are not the program's, and lets the sockets go on here. False if
/// nothing says that there are any.
fn take(fds: &mut SmallVec<[Fd; 16]>, peeked: bool) -> bool {
    let Some(carried) = carried(fds) else { return false };
    let (own, added) = fds.split_at(carried.own);
    for entry in carried.entries {
        let Some(entry) = entry.map_fds(|place| added.get(place as usize).copied()) else {
            continue;
        };
        let is_it = |fd: &Fd| {
            file::is_socket(*fd) && file::identity(*fd).is_ok_and(|found| found == entry.identity())
        };
        let named: SmallVec<[Fd; 4]> = own.iter().copied().filter(is_it).collect();
        if !named.is_empty() {
            adopt(&entry, &named, peeked);
        }
    }
    added.iter().for_each(|fd| file::close(*fd));
    fds.truncate(carried.own);
    true
}

fn carried(fds: &[Fd]) -> Option<Carried> {
    manifest::read_carried(*fds.last()?, fds.len())
}

/// One thread at a time, so that a socket gets into the table once.
static ARRIVING: FamilyLock = FamilyLock::new();

/// The socket of `entry`, which the program has as `fds` now. It is one of this process's, or becomes one.
fn adopt(entry: &Entry, fds: &[Fd], peeked: bool) {
    arrivals::note();
    let held = ARRIVING.lock();
    let known = known(entry.identity().1).is_some_and(|socket| {
        let joined = join(&socket, fds);
        if let Some(stream) = socket.stream().filter(|_| joined && !peeked) {
            // The message was a holder.
            stream.endpoint.holders.fetch_sub(1, SeqCst);
        }
        joined
    });
    if !known {
        match *entry {
            Entry::Connection { fds: given, has_options, .. } if is_made_by_us(given[0]) => {
                adopt_connection(given, has_options, fds, peeked);
            }
            Entry::Listener { fds: [given], has_options, .. } if is_made_by_us(given) => {
                let kept = file::duplicate_high(given).unwrap_or(-1);
                if kept >= 0 {
                    let _ = file::set_close_on_exec(kept, true);
                    hidden::note(kept);
                }
                adopt::adopt_listener(kept, has_options, fds);
            }
            Entry::Connection { fds: given, .. } if !is_back(given[0]) => {
                log::error!("a connection came from a process of another user, and is ended");
                adopt::end(fds);
            }
            // It went back to TCP when this process changed its user.
            Entry::Connection { .. } => {}
            Entry::Listener { .. } => {}
        }
    }
    if held.is_ok() {
        ARRIVING.unlock();
    }
}

/// True if the connection whose endpoint's memory this is went back to TCP. Whoever made that may be hostile: what
/// it says is believed of nothing but its own connection.
fn is_back(endpoint: Fd) -> bool {
    Memory::of_other_image(endpoint, -1).is_some_and(|memory| {
        // SAFETY: mapped just now, and used for this alone.
        unsafe {
            let back = (*memory.at).has(flag::NATIVE);
            Memory { fd: -1, ..memory }.release();
            back
        }
    })
}

fn adopt_connection(given: [Fd; 2], has_options: bool, fds: &[Fd], peeked: bool) {
    if adopt::adopt_passed(given, has_options, fds) && peeked {
        // Beside the message, which is still there.
        if let Some(stream) =
            fds.first().and_then(|fd| table::socket(*fd)).as_deref().and_then(Socket::stream)
        {
            stream.endpoint.holders.fetch_add(1, SeqCst);
        }
    }
}

/// The socket of this process with this inode.
fn known(inode: u64) -> Option<Pinned> {
    let mut found = None;
    table::each_socket(0, Fd::MAX - 1, |fd, socket| {
        if found.is_none() && socket.anchor() == fd && socket.inode() == Some(inode) {
            found = Some(socket);
        }
    });
    found
}

/// Enters more descriptors of a socket; false if it is just being closed.
fn join(socket: &Pinned, fds: &[Fd]) -> bool {
    let _structure = Structure::lock();
    if !socket.is_open() {
        return false;
    }
    for fd in fds {
        socket.add_descriptor();
        table::put_socket(*fd, socket.get());
    }
    true
}

/// Connections that lie in the queue of a Unix socket go back to TCP there: a program without the library may
/// take them out. Of memory only what the connections' processes share is changed.
pub(in crate::switch) fn bring_back_queued(over: Fd) {
    if poll::poll_one(over, libc::POLLIN).is_ok_and(|events| events & libc::POLLIN == 0) {
        return;
    }
    let mut before = net::option(over, libc::SOL_SOCKET, libc::SO_PEEK_OFF).unwrap_or(-1);
    if net::set_option(over, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &0i32).is_err() {
        return;
    }
    let (mut bytes, mut room) = ([0u8; 4096], Room([0; 4096]));
    while let Ok(peeked) = packet::peek(over, &mut bytes, &mut room.0) {
        if peeked.bytes == 0 && peeked.control == 0 {
            break;
        }
        let fds = rights(&room, peeked.control);
        // Whoever gets a Unix socket may get what comes over that.
        fds.iter().filter(|fd| trust::is_stream(**fd)).for_each(|fd| trust::distrust(*fd));
        bring_back(&fds);
        fds.iter().for_each(|fd| file::close(*fd));
    }
    before = before.max(-1);
    let _ = net::set_option(over, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &before);
}

/// The descriptors in the first `used` bytes of control messages.
pub(in crate::switch) fn rights(room: &Room, used: usize) -> SmallVec<[Fd; 16]> {
    let mut fds = SmallVec::new();
    let _ = control::each(&room.0[..used], |level, kind, data| {
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            fds.extend(control::descriptors(data));
        }
    });
    fds
}

/// Brings the connections in a message back to TCP; how many of its descriptors are the program's, if not all are.
pub(in crate::switch) fn bring_back(fds: &[Fd]) -> Option<usize> {
    let carried = carried(fds)?;
    let (own, added) = fds.split_at(carried.own);
    for entry in carried.entries {
        let Some(Entry::Connection { identity, fds: given, .. }) =
            entry.map_fds(|place| added.get(place as usize).copied())
        else {
            continue;
        };
        if let Some(fd) = own.iter().find(|fd| file::identity(**fd) == Ok(identity)) {
            if !is_made_by_us(given[0]) || !return_to_tcp(*fd, given) {
                adopt::end(&[*fd]);
            }
        }
    }
    Some(carried.own)
}

/// Brings a connection back to TCP that need not be this process's.
fn return_to_tcp(fd: Fd, given: [Fd; 2]) -> bool {
    let (Ok(segment), Some(memory)) =
        (Segment::attach(given[1]), Memory::of_other_image(given[0], -1))
    else {
        return false;
    };
    let socket = Socket::loose(fd);
    // SAFETY: nobody else knows of the socket.
    unsafe { socket.attach(segment, Memory { fd: -1, ..memory }, None) };
    socket.set_phase(phase::SAN);
    let returned = socket.stream().is_some_and(|stream| {
        detach::give(&socket, &stream, fd, Reason::HandedOver, WaitForRoom::Whole)
    });
    stand_in::see_to(std::iter::once((&socket, fd)));
    // SAFETY: the socket is nobody else's, and the connection's memory is not used through it any more.
    unsafe { socket.detach() };
    returned
}
