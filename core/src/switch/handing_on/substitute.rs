//! What a peer that is gone left unread, for a program without the library that this process is about to become (exec).
//! Nobody is there who could send it again over TCP. So that program gets an end of a fresh connection of this host.
//! That connection brings the same bytes and then ends in the same way. Only its ports differ.

use crate::switch::anchor::options;
use crate::switch::back_to_tcp::resend::AnchorWriter;
use crate::switch::endpoint::flag;
use crate::switch::stream::Stream;
use crate::sys::{file, net, poll, time, Errno, Fd, Result};
use std::sync::atomic::Ordering::SeqCst;

/// How long (ns) other processes have to close the connection: the parent of a child that was forked for it is about
/// to.
pub(in crate::switch) const HOLDERS_TIMEOUT: u64 = 200_000_000;
const NAP: u64 = 1_000_000;

/// True if nobody is there who could send again, or go on sending, what is unread here.
pub(super) fn is_over(anchor: Fd, stream: &Stream) -> bool {
    const ENDS: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let word = stream.peer().sending.0.direction.state();
    let has_ended = || poll::poll_one(anchor, ENDS).is_ok_and(|events| events & ENDS != 0);
    let is_at_once = !stream.is_between_hosts() && !word.left && !word.replayed;
    is_at_once && (stream.endpoint.has(flag::ANCHOR_ENDED) || has_ended())
}

/// Looks whether the connection went back to TCP, and its peer was gone before it sent again what is unread.
pub(super) fn look_for_loss(anchor: Fd, stream: &Stream) -> bool {
    stream.peer().sending.0.direction.state().recalled
        && is_over(anchor, stream)
        && stream.has_unread()
}

/// Makes such an end, in the place of `anchor`. The caller closes it. The bytes that it brings stay unread here.
///
/// # Errors
///
/// EOPNOTSUPP if the peer is there, or another process has the connection as well, `until` (clock, ns) and longer,
/// which would read the same bytes again; what the kernel says where there is no room for all of them, or no socket.
pub(in crate::switch) fn in_place_of(anchor: Fd, stream: &Stream, until: u64) -> Result<Fd> {
    let e = stream.endpoint;
    let is_over = || is_over(anchor, stream);
    if !is_over() || !await_alone(stream, until) || !is_over() {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let ours = net::local_address(anchor)?.ip();
    // A connection that was reset has no peer any more.
    let theirs = net::peer_address(anchor).map_or(ours, |peer| peer.ip());
    let [end, peer] = net::pair(ours, theirs)?;
    let brought = bring(stream, anchor, peer);
    if e.has(flag::RESET) && !e.has(flag::ERROR_REPORTED) {
        let _ = net::reset_at_close(peer);
    }
    file::close(peer);
    if let Err(why) = brought {
        file::close(end);
        return Err(why);
    }
    if tells_of_broken_pipe(stream) {
        break_pipe(end);
    }
    make_alike(anchor, end);
    if e.has(flag::SEND_SHUT) {
        let _ = net::shutdown(end, libc::SHUT_WR);
    }
    Ok(end)
}

/// Makes an end of a connection that is over, for a program that cannot get this one. The caller closes it. It tells a
/// broken pipe where only that has to be told, and otherwise a reset.
///
/// # Errors
///
/// What the kernel says where it has no room for a socket.
pub(super) fn over(anchor: Fd, stream: &Stream) -> Result<Fd> {
    let ours = net::local_address(anchor)?.ip();
    let theirs = net::peer_address(anchor).map_or(ours, |peer| peer.ip());
    // The peer's address may be another host's.
    let [end, peer] = net::pair(ours, theirs).or_else(|_| net::pair(ours, ours))?;
    make_alike(anchor, end);
    let is_read = || stream.lock_receive().is_ok_and(|_held| stream.available() == Ok(0));
    if tells_of_broken_pipe(stream) && is_read() {
        file::close(peer);
        break_pipe(end);
    } else {
        let _ = net::reset_at_close(peer);
        file::close(peer);
    }
    Ok(end)
}

/// True if the peer ended the stream and is gone since, and the program does not know of the second.
fn tells_of_broken_pipe(stream: &Stream) -> bool {
    let e = stream.endpoint;
    e.has(flag::BROKEN_PIPE) && !e.has(flag::RESET) && !e.has(flag::ERROR_REPORTED)
}

/// Has the kernel know that nobody is at the other end. The kernel then answers what is sent there with a reset.
fn break_pipe(end: Fd) {
    let _ = net::send(end, &[0], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
}

fn make_alike(anchor: Fd, end: Fd) {
    let _ = file::status_flags(anchor).map(|flags| file::set_status_flags(end, flags));
    options::copy(anchor, end);
}

fn await_alone(stream: &Stream, until: u64) -> bool {
    while stream.endpoint.holders.load(SeqCst) != 1 {
        if time::now() > until {
            return false;
        }
        time::sleep(NAP);
    }
    true
}

/// Sends what is unread over `to`, if there is room for all of it.
fn bring(stream: &Stream, anchor: Fd, to: Fd) -> Result<()> {
    let Ok(_held) = stream.lock_receive() else { return Err(Errno(libc::EAGAIN)) };
    let mut writer = AnchorWriter::new(to, 0);
    // The kernel's bytes came before the turn: their sender never came back.
    let mut before = vec![0u8; net::unread(anchor).unwrap_or(0) as usize];
    if !before.is_empty() {
        let seen = net::recv(anchor, &mut before, libc::MSG_PEEK | libc::MSG_DONTWAIT)?;
        writer.put(&before[..seen]);
    }
    let valid = stream.each_left(|bytes| writer.put(bytes));
    valid.map_err(|_| Errno(libc::ECONNRESET))?;
    writer.failed().map_or(Ok(()), Err)
}
