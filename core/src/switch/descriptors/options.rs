//! Socket options and ioctls that the SAN has to honour itself. All others are the kernel's. [`option_table`] says
//! which options these are, and [`anchor::options`](crate::switch::anchor::options) what each does to the anchor.

use crate::reason::Reason;
use crate::session::WayOut;
use crate::switch::anchor::ends;
use crate::switch::anchor::options;
use crate::switch::anchor::ready;
use crate::switch::anchor::switchover;
use crate::switch::anchor::user_timeout;
use crate::switch::back_to_tcp::detach::{self, WaitForRoom};
use crate::switch::endpoint::flag;
use crate::switch::handing_on::bring_back;
use crate::switch::option_table::{self, Topic};
use crate::switch::setup::{self, first_segment};
use crate::switch::socket::table;
use crate::switch::socket::{phase, Socket};
use crate::switch::waiting::wait;
use crate::sys::{net, time, Errno, Fd};
use std::sync::atomic::Ordering::Relaxed;

/// After setsockopt succeeded in the kernel: an option with an integer value.
pub fn after_set(fd: Fd, level: i32, name: i32, value: i32) {
    let Some(socket) = table::socket(fd) else { return };
    let Some(option) = option_table::find(level, name) else { return };
    if option.matters_to_move() {
        socket.has_options.store(true, Relaxed);
    }
    let Some(stream) = socket.stream() else { return };
    match option.topic {
        Topic::UserTimeout => user_timeout::set(&stream, value),
        // The kernel doubles the value for its own overhead, and so do we.
        Topic::SendBuffer => options::fix_send_buffer(&stream, value.saturating_mul(2)),
        Topic::LowWater => {
            options::note_low_water(&stream, value);
            if ready::poll_readable(&stream) {
                stream.make_edge();
            }
        }
        // The kernel keeps the rate on TCP.
        Topic::Pacing => {}
        _ => return,
    }
    if options::unsupported(&socket) {
        bring_back::bring_back_for(&[fd], Reason::UnsupportedOption, WaitForRoom::Moment);
    }
}

/// What getsockopt answers in the kernel's stead.
pub enum Answer {
    /// The call fails.
    Fails(Errno),
    /// The value of an integer.
    Integer([u8; 4]),
    /// The first byte of a structure; the rest is the kernel's.
    FirstByte([u8; 1]),
}

impl Answer {
    /// The bytes that are stored in the place of the kernel's first ones. `None`: the call fails.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Answer::Fails(_) => None,
            Answer::Integer(bytes) => Some(bytes),
            Answer::FirstByte(byte) => Some(byte),
        }
    }
}

/// Before getsockopt; `None`: the kernel's answer stands.
pub fn answer(fd: Fd, level: i32, name: i32) -> Option<Answer> {
    let integer = |value: Option<i32>| value.map(|value| Answer::Integer(value.to_ne_bytes()));
    match option_table::find(level, name)?.topic {
        Topic::Error => integer(error(fd)),
        Topic::LowWater => integer(low_water(fd)),
        Topic::State => tcp_state(fd).map(|state| Answer::FirstByte([state])),
        Topic::ZeroCopyReceive if !bring_back::before_unhooked_use(fd) => {
            Some(Answer::Fails(Errno(libc::EOPNOTSUPP)))
        }
        _ => None,
    }
}

/// SO_ERROR of a SAN socket, told once; `None`: the kernel's answer stands.
fn error(fd: Fd) -> Option<i32> {
    if let Some(socket) = table::connected(fd) {
        setup::forget_shown(&socket);
    }
    let socket = table::san(fd)?;
    ends::look(&socket, &socket.stream()?);
    broken_by(&socket).map(|_| take_error(&socket).map_or(0, |e| e.0))
}

/// The error of a broken connection, told once.
pub fn take_error(socket: &Socket) -> Option<Errno> {
    let stream = socket.stream()?;
    if ends::ended(&stream) {
        // A fork relative may have broken the pipe a moment ago, which the kernel alone tells.
        ends::look(socket, &stream);
    } else {
        wait::look_if_stale(socket, &stream, time::ticks());
    }
    let e = broken_by(socket)?;
    socket.stream()?.endpoint.set(flag::ERROR_REPORTED).then_some(e)
}

/// Follows a peer that went back to TCP. True if the socket is there: the kernel has its error to tell.
pub fn follow_to_kernel(socket: &Socket) -> bool {
    socket.stream().is_none_or(|stream| detach::look_after(socket, &stream))
}

/// Keeps an error that a call was told and cannot report. The next call reports it, as in the kernel.
pub fn put_error_back(socket: &Socket, e: Errno) {
    if broken_by(socket) == Some(e) {
        if let Some(stream) = socket.stream() {
            stream.endpoint.clear(flag::ERROR_REPORTED);
        }
    }
}

/// Why a connection is broken, told or not.
fn broken_by(socket: &Socket) -> Option<Errno> {
    let stream = socket.stream()?;
    let is_broken = stream.endpoint.has(flag::RESET | flag::BROKEN_PIPE);
    is_broken.then(|| stream.endpoint.broken_by())
}

/// SO_RCVLOWAT of a SAN socket.
fn low_water(fd: Fd) -> Option<i32> {
    let socket = table::san(fd)?;
    let stream = socket.stream()?;
    Some(stream.endpoint.receive.low_water.load(Relaxed) as i32)
}

/// The TCP state (tcpi_state) of a connection whose half-closes the kernel did not see. `None`: the kernel's answer
/// stands.
fn tcp_state(fd: Fd) -> Option<u8> {
    const FIN_WAIT2: u8 = 5;
    const CLOSE_WAIT: u8 = 8;
    const CLOSE: u8 = 7;
    let socket = table::san(fd)?;
    let stream = socket.stream()?;
    let is_closed = ends::look_for_close(&socket, &stream);
    match (ends::ended(&stream), stream.endpoint.has(flag::SEND_SHUT)) {
        _ if is_closed => Some(CLOSE),
        (true, _) => Some(CLOSE_WAIT),
        (_, true) => Some(FIN_WAIT2),
        _ => None,
    }
}

/// Whether connections are accepted on it.
pub fn listens(fd: Fd) -> bool {
    table::socket(fd).is_some_and(|socket| socket.phase() == phase::LISTENER)
}

/// Looks whether a SAN connection is over in both directions, or broken: the kernel's socket, which does not know of it,
/// still has a peer then, where TCP's has none.
pub fn look_for_close(fd: Fd) -> bool {
    let Some(socket) = table::san(fd) else { return false };
    socket.stream().is_some_and(|stream| ends::look_for_close(&socket, &stream))
}

/// Before an option is set that the SAN can not honour: the errno that says so. `value`: if it is an integer.
pub fn refuses(fd: Fd, level: i32, name: i32, value: Option<i32>) -> Option<Errno> {
    match option_table::find(level, name)?.topic {
        Topic::FirstSegment => first_segment::leave_to_program(),
        // The kernel's peek offset counts the anchor's bytes.
        Topic::PeekOffset if value.is_some_and(|value| value >= 0) => {
            return table::san(fd).map(|_| Errno(libc::EOPNOTSUPP));
        }
        // The kernel would tell nothing of what goes over the SAN.
        Topic::Timestamps if value.is_some_and(options::reports_what_is_sent) => {
            let is_back =
                bring_back::bring_back_for(&[fd], Reason::UnsupportedOption, WaitForRoom::Second);
            return (!is_back).then_some(Errno(libc::EOPNOTSUPP));
        }
        Topic::UpperLayer => {
            let socket = table::socket(fd)?;
            setup::stay_on_tcp(&socket, Reason::UnsupportedOption);
            // As where the kernel has no TLS: programs encrypt themselves then.
            return (socket.phase() == phase::SAN).then_some(Errno(libc::ENOENT));
        }
        _ => {}
    }
    None
}

/// Before a send with MSG_ZEROCOPY: where SO_ZEROCOPY is on, the kernel is to tell when it no longer needs the memory, and
/// only TCP does. So the connection goes there, this end's direction at once, or as soon as there is room for what goes first: the
/// send waits for that as for any room. ENOBUFS where that can not be now: the kernel's answer where it has no room to
/// keep account of another such send.
pub fn before_zero_copy(socket: &Socket) -> Result<(), Errno> {
    if net::option(socket.anchor(), libc::SOL_SOCKET, libc::SO_ZEROCOPY) != Ok(1) {
        return Ok(());
    }
    setup::stay_on_tcp(socket, Reason::UnsupportedOption);
    let Some(stream) = socket.stream().filter(|_| socket.phase() == phase::SAN) else {
        return Ok(());
    };
    let is_back = detach::advance(socket, &stream, Reason::UnsupportedOption);
    if is_back || matches!(stream.endpoint.way_out(), WayOut::Leaving | WayOut::Left) {
        Ok(())
    } else {
        Err(Errno(libc::ENOBUFS))
    }
}

/// ioctl requests with an integer result.
pub fn ioctl(fd: Fd, request: u64) -> Option<i32> {
    let socket = table::san(fd)?;
    let stream = socket.stream()?;
    let clamp = |bytes: u64| bytes.min(i32::MAX as u64) as i32;
    match request {
        // Once the rest comes over TCP, the kernel counts it.
        libc::FIONREAD if detach::look_after(&socket, &stream) => None,
        libc::FIONREAD => {
            wait::look_if_stale(&socket, &stream, time::ticks());
            Some(clamp(ready::available(&stream)))
        }
        libc::TIOCOUTQ if !switchover::has_turned(&stream) => None,
        libc::TIOCOUTQ => {
            ends::look(&socket, &stream);
            Some(clamp(stream.unsent()))
        }
        // The urgent byte comes over TCP, behind what lies in the segment.
        net::SIOCATMARK => {
            let _held = stream.lock_receive();
            (stream.available() != Ok(0)).then_some(0)
        }
        _ => None,
    }
}

pub use crate::sys::net::SIOCATMARK;

/// The open file description's flags changed, as far as they matter to us.
pub fn status_flags_changed(fd: Fd, nonblocking: Option<bool>, asynchronous: Option<bool>) {
    let Some(socket) = table::socket(fd) else { return };
    if asynchronous == Some(true) {
        socket.note_awaited();
    }
    let Some(stream) = socket.stream() else { return };
    let apply = |bit: u32, on: Option<bool>| match on {
        Some(true) => {
            stream.endpoint.set(bit);
        }
        Some(false) => {
            stream.endpoint.clear(bit);
        }
        None => {}
    };
    apply(flag::NONBLOCK, nonblocking);
    if asynchronous == Some(true) {
        // The kernel sees nothing of what comes over the SAN, and raises no signal for it.
        bring_back::bring_back_for(&[fd], Reason::TcpOnly, WaitForRoom::Moment);
    }
}
