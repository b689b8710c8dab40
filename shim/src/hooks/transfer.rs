//! Sending and receiving bytes: send, recv, read, write, and those with vectors and offsets. Messages are in `message`,
//! and several of them at once in `batches`. A new function here needs its number in `syscall` too.

use super::{addresses, or_real, returned};
use crate::real::hooks;
use libc::{
    c_int, c_uint, c_void, iovec, itimerspec, off64_t, off_t, size_t, sockaddr, socklen_t, ssize_t,
};
use sanshim_core::switch::buffers::{may_be_ours, Buffers};
use sanshim_core::switch::table::{self, Pinned};
use sanshim_core::switch::{files, options, setup, transfer, Lane, Outcome};
use sanshim_core::sys::actions::done;
use sanshim_core::sys::user::{self, Access};
use sanshim_core::sys::{errno, file, rw_flags, Errno, Result};

/// The socket behind `fd` if its bytes go over the SAN, or may do so later.
#[inline]
pub(super) fn find(fd: c_int) -> Option<Pinned> {
    table::connected(fd)
}

/// As [`find`], but the thread may be cancelled here if there is one.
#[inline]
pub(super) fn find_or_cancel(fd: c_int) -> Option<Pinned> {
    let socket = find(fd)?;
    cancellation_point();
    Some(socket)
}

/// Which code does a transfer.
enum Performer {
    /// The kernel. A socket that is on TCP stays there as long as this exists.
    Kernel(Option<Pinned>),
    /// The switch.
    Switch(Pinned),
}

/// Begins a transfer: takes the socket's step before it, and so learns which code does it. Most transfers stay on TCP.
/// There libc's own function is the cancellation point. Not inlined, because all that send and receive share it.
#[inline(never)]
#[link_section = "sanshim_path"]
fn begin(fd: c_int, length: size_t, flags: c_int) -> Performer {
    let Some(socket) = find(fd) else { return Performer::Kernel(None) };
    // The switch looks at what these two ask for before the kernel sends.
    let is_plain = flags & (libc::MSG_ZEROCOPY | libc::MSG_OOB) == 0;
    if is_plain && setup::advance(&socket, length) == Lane::Tcp {
        return Performer::Kernel(Some(socket));
    }
    cancellation_point();
    Performer::Switch(socket)
}

/// A send by the kernel, which `real` does for so many bytes from there on.
#[inline(always)]
fn send_by_kernel(
    pinned: &Option<Pinned>,
    (buffer, length): (*const c_void, size_t),
    flags: c_int,
    real: impl Fn(*const c_void, size_t) -> ssize_t,
) -> ssize_t {
    match pinned {
        Some(socket) if setup::may_show(socket) => {
            send_shown(socket, (buffer, length), flags, real)
        }
        _ => done(real(buffer, length)),
    }
}

/// The same, where the kernel may show the segment that the first bytes go in.
#[cold]
#[inline(never)]
fn send_shown(
    socket: &Pinned,
    (buffer, length): (*const c_void, size_t),
    flags: c_int,
    real: impl Fn(*const c_void, size_t) -> ssize_t,
) -> ssize_t {
    cancellation_point();
    let bytes = one(buffer, length);
    let shown =
        Buffers::new(&bytes).ok().and_then(|from| setup::send_shown(socket, &from, flags, false));
    let ahead = match shown {
        None => return done(real(buffer, length)),
        Some(Ok(ahead)) if ahead < length => ahead,
        Some(all) => return returned(all),
    };
    let before = errno::get();
    let rest = done(real(buffer.wrapping_byte_add(ahead), length - ahead));
    if rest < 0 {
        // The call succeeds all the same.
        errno::set(before);
    }
    ahead as ssize_t + rest.max(0)
}

/// A send of several pieces by the kernel, which `real` does.
#[inline]
pub(super) fn send_pieces_by_kernel(
    socket: &Pinned,
    pieces: impl FnOnce() -> Option<Buffers<'static>>,
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if setup::may_show(socket) {
        let shown = pieces().and_then(|from| setup::send_shown(socket, &from, flags, true));
        if let Some(all) = shown {
            return returned(all);
        }
    }
    real()
}

/// Ends a receive by the kernel: the socket's step after it.
#[inline]
fn received(pinned: Option<Pinned>, got: ssize_t) -> ssize_t {
    match &pinned {
        Some(socket) => after(socket, got),
        None => got,
    }
}

/// As [`received`].
#[inline]
pub(super) fn after(socket: &Pinned, got: ssize_t) -> ssize_t {
    setup::forget_shown(socket);
    got
}

/// The result of the switch as libc returns it. If the switch passed, `real` goes on with the call by the number that the socket
/// has by now: another thread may have put another file at the program's.
#[inline]
pub(super) fn or_kernel(
    (socket, fd): (&Pinned, c_int),
    outcome: Outcome,
    real: impl FnOnce(c_int) -> ssize_t,
) -> ssize_t {
    or_real(outcome, || real(socket.number_now(fd)))
}

extern "C-unwind" {
    fn pthread_testcancel();
}

/// A cancellation point. All transfers are one, whether they sleep or not.
#[inline]
pub(super) fn cancellation_point() {
    // SAFETY: unwinds if the thread was cancelled; callers hold nothing that minds.
    unsafe { pthread_testcancel() }
}

#[inline]
fn one(buffer: *const c_void, length: size_t) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: length.min(isize::MAX as usize) }]
}

/// For read and write, which look at all of the length before they cut it.
#[inline]
fn whole(buffer: &[iovec; 1]) -> Result<Buffers<'_>> {
    match may_be_ours(buffer[0].iov_base.cast(), buffer[0].iov_len) {
        true => Buffers::new(buffer),
        false => Err(Errno(libc::EFAULT)),
    }
}

pub(super) fn checked(buffers: Result<Buffers>, run: impl FnOnce(Buffers) -> Outcome) -> Outcome {
    match buffers {
        Ok(buffers) => run(buffers),
        Err(e) => Outcome::Done(Err(e)),
    }
}

/// Sends for a call with flags of send. The bytes that the library itself sends over TCP are not in the program's memory.
#[inline]
pub(super) fn send_flagged(socket: &Pinned, buffers: Result<Buffers>, flags: c_int) -> Outcome {
    checked(buffers, |b| {
        if flags & libc::MSG_ZEROCOPY != 0 {
            if let Err(e) = options::before_zero_copy(socket) {
                return Outcome::Done(Err(e));
            }
        }
        transfer::send(socket, b, flags & !libc::MSG_ZEROCOPY)
    })
}

#[inline]
fn send_one(socket: &Pinned, buffer: *const c_void, length: size_t, flags: c_int) -> Outcome {
    send_flagged(socket, Buffers::new(&one(buffer, length)), flags)
}

#[inline]
fn receive_one(socket: &Pinned, buffer: *mut c_void, length: size_t, flags: c_int) -> Outcome {
    checked(Buffers::new(&one(buffer, length)), |b| transfer::receive(socket, b, flags))
}

/// The buffers of readv and writev. A negative or too large count is EINVAL here, where sendmsg says EMSGSIZE.
unsafe fn vector<'a>(buffers: *const iovec, count: c_int) -> Result<Buffers<'a>> {
    if !(0..=1024).contains(&count) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the program gave `count` buffers.
    unsafe { Buffers::from_raw(buffers, count as usize) }
}

hooks! {
    #[link_section = "sanshim_path"]
    fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t = |real| {
        match begin(fd, length, flags) {
            Performer::Kernel(pinned) => send_by_kernel(&pinned, (buffer, length), flags,
                |buffer, length| real(fd, buffer, length, flags)),
            Performer::Switch(socket) => or_kernel((&socket, fd), send_one(&socket, buffer, length, flags),
                |fd| real(fd, buffer, length, flags)),
        }
    }

    fn __send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t
    = |real| {
        // SAFETY: the same contract.
        unsafe { send(fd, buffer, length, flags) }
    }

    #[link_section = "sanshim_path"]
    fn sendto(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int,
        to: *const sockaddr, to_length: socklen_t) -> ssize_t
    = |real| {
        match begin(fd, length, flags) {
            Performer::Kernel(pinned) if to.is_null() => send_by_kernel(&pinned, (buffer, length),
                flags, |buffer, length| real(fd, buffer, length, flags, to, to_length)),
            Performer::Kernel(_pinned) => done(real(fd, buffer, length, flags, to, to_length)),
            Performer::Switch(socket) => {
                if !to.is_null() {
                    if let Err(e) = addresses::of_send(to, to_length) {
                        return returned(Err(e));
                    }
                }
                or_kernel((&socket, fd), send_one(&socket, buffer, length, flags),
                    |fd| real(fd, buffer, length, flags, to, to_length))
            }
        }
    }

    #[link_section = "sanshim_path"]
    fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t = |real| {
        match begin(fd, length, 0) {
            Performer::Kernel(pinned) => send_by_kernel(&pinned, (buffer, length), 0,
                |buffer, length| real(fd, buffer, length)),
            Performer::Switch(socket) => or_kernel((&socket, fd), checked(whole(&one(buffer, length)),
                |b| transfer::send(&socket, b, 0)),
                |fd| real(fd, buffer, length)),
        }
    }

    fn __write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t = |real| {
        // SAFETY: the same contract.
        unsafe { write(fd, buffer, length) }
    }

    #[link_section = "sanshim_path"]
    fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t = |real| {
        match find_or_cancel(fd) {
            None => done(real(fd, buffers, count)),
            // SAFETY: the program gave `count` buffers.
            Some(socket) => or_kernel((&socket, fd), checked(unsafe { vector(buffers, count) },
                |b| transfer::write_vector(&socket, b, 0)),
                // SAFETY: the program gave `count` buffers.
                |fd| send_pieces_by_kernel(&socket, || unsafe { vector(buffers, count) }.ok(), 0,
                    || real(fd, buffers, count))),
        }
    }

    fn pwritev2(fd: c_int, buffers: *const iovec, count: c_int, offset: off64_t, flags: c_int)
        -> ssize_t
    = |real| {
        // Without an offset it is writev.
        let Some(socket) = find_or_cancel(fd).filter(|_| offset == -1) else {
            return done(real(fd, buffers, count, offset, flags));
        };
        let wanted = match rw_flags::of_message(flags, true) {
            Ok(wanted) => wanted,
            Err(e) => return returned(Err(e)),
        };
        // SAFETY: the program gave `count` buffers.
        or_kernel((&socket, fd), checked(unsafe { vector(buffers, count) },
            |b| transfer::write_vector(&socket, b, wanted)),
            |fd| real(fd, buffers, count, offset, flags))
    }

    fn pwritev64v2(fd: c_int, buffers: *const iovec, count: c_int, offset: off64_t, flags: c_int)
        -> ssize_t
    = |real| {
        // SAFETY: the same contract.
        unsafe { pwritev2(fd, buffers, count, offset, flags) }
    }

    #[link_section = "sanshim_path"]
    fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t = |real| {
        match begin(fd, length, flags) {
            Performer::Kernel(pinned) => received(pinned, real(fd, buffer, length, flags)),
            Performer::Switch(socket) => or_kernel((&socket, fd), receive_one(&socket, buffer, length, flags),
                |fd| real(fd, buffer, length, flags)),
        }
    }

    #[link_section = "sanshim_path"]
    fn recvfrom(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int,
        from: *mut sockaddr, from_length: *mut socklen_t) -> ssize_t
    = |real| {
        let socket = match begin(fd, length, flags) {
            Performer::Kernel(pinned) => {
                return received(pinned, real(fd, buffer, length, flags, from, from_length));
            }
            Performer::Switch(socket) => socket,
        };
        let mut outcome = receive_one(&socket, buffer, length, flags);
        if let (Outcome::Done(result @ Ok(_)), false) = (&mut outcome, from.is_null()) {
            // The bytes are taken by then.
            if let Err(e) = addresses::none_received(from_length) {
                *result = Err(e);
            }
        }
        or_kernel((&socket, fd), outcome, |fd| real(fd, buffer, length, flags, from, from_length))
    }

    #[link_section = "sanshim_path"]
    fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t = |real| {
        match begin(fd, length, 0) {
            Performer::Kernel(pinned) => received(pinned, real(fd, buffer, length)),
            Performer::Switch(socket) => or_kernel((&socket, fd), checked(whole(&one(buffer, length)),
                |b| transfer::read(&socket, b, 0)), |fd| real(fd, buffer, length)),
        }
    }

    fn __read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t = |real| {
        // SAFETY: the same contract.
        unsafe { read(fd, buffer, length) }
    }

    #[link_section = "sanshim_path"]
    fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t = |real| {
        match find_or_cancel(fd) {
            None => real(fd, buffers, count),
            // SAFETY: the program gave `count` buffers.
            Some(socket) => or_kernel((&socket, fd), checked(unsafe { vector(buffers, count) },
                |b| transfer::read(&socket, b, 0)), |fd| after(&socket, real(fd, buffers, count))),
        }
    }

    fn preadv2(fd: c_int, buffers: *const iovec, count: c_int, offset: off64_t, flags: c_int)
        -> ssize_t
    = |real| {
        // Without an offset it is readv.
        let Some(socket) = find_or_cancel(fd).filter(|_| offset == -1) else {
            return real(fd, buffers, count, offset, flags);
        };
        let wanted = match rw_flags::of_message(flags, false) {
            Ok(wanted) => wanted,
            Err(e) => return returned(Err(e)),
        };
        // SAFETY: the program gave `count` buffers.
        or_kernel((&socket, fd), checked(unsafe { vector(buffers, count) },
            |b| transfer::read(&socket, b, wanted)),
            |fd| after(&socket, real(fd, buffers, count, offset, flags)))
    }

    fn preadv64v2(fd: c_int, buffers: *const iovec, count: c_int, offset: off64_t, flags: c_int)
        -> ssize_t
    = |real| {
        // SAFETY: the same contract.
        unsafe { preadv2(fd, buffers, count, offset, flags) }
    }

    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t = |real| {
        let pass = || done(real(out, from, offset, count));
        let Some(socket) = find_or_cancel(out) else {
            // From a socket only into a pipe, as splice does.
            return match find_or_cancel(from).filter(|_| offset.is_null() && file::is_pipe(out)) {
                Some(source) => or_kernel((&source, from), files::splice_out(&source, out, count, 0),
                    |from| done(real(out, from, offset, count))),
                None => pass(),
            };
        };
        if !offset.is_null()
            && user::check(offset.cast(), size_of::<off_t>(), Access::Write).is_err()
        {
            return returned(Err(Errno(libc::EFAULT)));
        }
        // SAFETY: null, or writable.
        let outcome = files::send_file(&socket, from, unsafe { offset.as_mut() }, count);
        or_kernel((&socket, out), outcome, |out| done(real(out, from, offset, count)))
    }

    fn sendfile64(out: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t
    = |real| {
        // SAFETY: the same contract; off_t is 64 bits wide.
        unsafe { sendfile(out, from, offset, count) }
    }

    fn tee(from: c_int, to: c_int, length: size_t, flags: c_uint) -> ssize_t = |real| {
        done(real(from, to, length, flags))
    }

    fn vmsplice(pipe: c_int, buffers: *const iovec, count: size_t, flags: c_uint) -> ssize_t
    = |real| {
        done(real(pipe, buffers, count, flags))
    }

    fn eventfd_write(fd: c_int, value: u64) -> c_int = |real| { done(real(fd, value)) }

    fn timerfd_settime(fd: c_int, flags: c_int, new: *const itimerspec, old: *mut itimerspec) -> c_int
    = |real| {
        done(real(fd, flags, new, old))
    }

    fn splice(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t,
        length: size_t, flags: c_uint) -> ssize_t
    = |real| {
        let pass = || done(real(from, from_offset, to, to_offset, length, flags));
        if length == 0 || flags & !SPLICE_FLAGS != 0 {
            // The kernel says so, whatever the descriptors are.
            return pass();
        }
        if let Some(socket) = find_or_cancel(to) {
            if !file::is_pipe(from) {
                return returned(Err(Errno(libc::EINVAL)));
            }
            if let Some(e) = misplaced(to_offset, from_offset) {
                return returned(Err(e));
            }
            return or_kernel((&socket, to), files::splice_in(&socket, from, length, flags), |to| {
                done(real(from, from_offset, to, to_offset, length, flags))
            });
        }
        if let Some(socket) = find_or_cancel(from) {
            if !file::is_pipe(to) {
                return returned(Err(Errno(libc::EINVAL)));
            }
            if let Some(e) = misplaced(from_offset, to_offset) {
                return returned(Err(e));
            }
            return or_kernel((&socket, from), files::splice_out(&socket, to, length, flags), |from| {
                done(real(from, from_offset, to, to_offset, length, flags))
            });
        }
        pass()
    }
}

/// The flags that splice has.
const SPLICE_FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// The kernel's error for a splice with an offset for the socket, or for the pipe.
fn misplaced(socket: *mut off64_t, pipe: *mut off64_t) -> Option<Errno> {
    if !pipe.is_null() {
        Some(Errno(libc::ESPIPE))
    } else if !socket.is_null() {
        Some(user::read(socket).err().unwrap_or(Errno(libc::EINVAL)))
    } else {
        None
    }
}

/// Sets errno, for functions that fail without libc.
pub(super) fn fail(e: i32) -> isize {
    errno::set(e);
    -1
}
