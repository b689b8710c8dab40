//! Messages with connections for a process that has too few descriptors left.
//!
//! What goes along with a connection lies behind the program's own descriptors in a message, and the kernel drops
//! what does not fit. So where not every message would fit each is looked at before it is taken; where something
//! would be lost, its connections go back to TCP before, in a child with room enough, and the program gets its own
//! descriptors.

use crate::switch::handing_on::arrival;
use crate::sys::control::{Room, MOST_DESCRIPTORS};
use crate::sys::{beside, beyond, file, net, packet, poll, Fd};

/// What a look at the next message found.
pub(in crate::switch) enum Look {
    /// The real call's result: there is none, or an error.
    Failed(isize),
    /// It is taken as it is.
    Fits,
    /// Not all its descriptors fit.
    Cut(Cut),
}

/// A message whose connections went back to TCP.
#[derive(Clone, Copy)]
pub(in crate::switch) struct Cut {
    /// How many of its descriptors are the program's.
    own: usize,
    /// Device and inode of the first of those.
    first: (u64, u64),
}

impl Cut {
    /// Closes those of a message's descriptors that are not the program's, if it is this message; true if all of
    /// the program's are there.
    pub(in crate::switch) fn take_off(
        &self,
        fds: &mut smallvec::SmallVec<[Fd; 16]>,
    ) -> Option<bool> {
        if file::identity(*fds.first()?) != Ok(self.first) {
            return None;
        }
        fds.iter().skip(self.own).for_each(|fd| file::close(*fd));
        fds.truncate(self.own);
        Some(fds.len() == self.own)
    }
}

/// Before a message is received over `fd` by `real`, which is called to wait for it.
pub(in crate::switch) fn prepare(
    fd: Fd,
    flags: i32,
    real: impl Fn(*mut libc::msghdr, i32) -> isize,
) -> Look {
    const ELSEWHERE: i32 = libc::MSG_OOB | libc::MSG_ERRQUEUE;
    let peeks_elsewhere =
        || net::option(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF).is_ok_and(|offset| offset >= 0);
    // A look may meet [`arrival::bring_back_queued`], which moves the place to look at for a moment.
    if has_room() || flags & ELSEWHERE != 0 || peeks_elsewhere() {
        return Look::Fits;
    }
    // SAFETY: all zero is a message without room for anything.
    let mut nothing: libc::msghdr = unsafe { std::mem::zeroed() };
    let result = real(&mut nothing, flags & libc::MSG_DONTWAIT | libc::MSG_PEEK);
    if result < 0 {
        return Look::Failed(result);
    }
    // That control messages were dropped says that there are any.
    if nothing.msg_flags & libc::MSG_CTRUNC == 0 || fits(fd) {
        return Look::Fits;
    }
    let mut cut = None;
    beside::with_own_descriptors(&mut || cut = bring_back(fd));
    cut.map_or(Look::Fits, Look::Cut)
}

/// True if every message fits: the last numbers that this process may have are free, as many as one can bring.
fn has_room() -> bool {
    let Some(limit) = beyond::limits(None) else { return false };
    let end = Fd::try_from(limit.rlim_cur).unwrap_or(Fd::MAX);
    let first = end - MOST_DESCRIPTORS as Fd;
    let mut last: [libc::pollfd; MOST_DESCRIPTORS] = std::array::from_fn(|i| libc::pollfd {
        fd: first.saturating_add(i as Fd),
        events: 0,
        revents: 0,
    });
    // Those that are open say nothing, or something else.
    first > 0
        && poll::poll(&mut last, Some(0), None).is_ok()
        && last.iter().all(|one| one.revents == libc::POLLNVAL)
}

/// True if all descriptors of the next message can be made.
fn fits(over: Fd) -> bool {
    let mut room = Room([0; 4096]);
    let Ok(peeked) = packet::peek(over, &mut [], &mut room.0) else { return true };
    arrival::rights(&room, peeked.control).into_iter().for_each(file::close);
    !peeked.truncated
}

/// Brings the connections in the next message back to TCP. In a child with its own descriptors.
fn bring_back(over: Fd) -> Option<Cut> {
    beside::make_room(MOST_DESCRIPTORS, over);
    let mut room = Room([0; 4096]);
    let peeked = packet::peek(over, &mut [], &mut room.0).ok()?;
    let fds = arrival::rights(&room, peeked.control);
    let first = file::identity(*fds.first()?).ok()?;
    let own = arrival::bring_back(&fds)?;
    Some(Cut { own, first })
}
