//! Unix sockets that carry packets and descriptors. They have names, by which processes find each other.

use super::{call, file, net, Errno, Fd, Result};
use std::ffi::CStr;
use std::mem::size_of;

/// The name of a Unix socket.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    address: libc::sockaddr_un,
    length: u32,
}

impl Name {
    /// An abstract name, given without its leading zero byte, of which it is cut off after 107. Each network namespace has
    /// its own. Every user may send to it, and /proc/net/unix shows it to all.
    pub(crate) fn abstract_of(name: &[u8]) -> Self {
        Self::new(1, name)
    }

    /// The name of a file. A process that may write to the file may send to the socket. The name is cut off after 107
    /// bytes.
    pub(crate) fn of_file(path: &CStr) -> Self {
        Self::new(0, path.to_bytes())
    }

    fn new(first: usize, name: &[u8]) -> Self {
        // SAFETY: sockaddr_un is plain data.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as u16;
        let n = name.len().min(address.sun_path.len() - 1);
        for (to, from) in address.sun_path[first..].iter_mut().zip(&name[..n]) {
            *to = *from as libc::c_char;
        }
        // The kernel ends a file's name at the byte behind it.
        Self { address, length: (size_of::<libc::sa_family_t>() + 1 + n) as u32 }
    }

    fn at(&self) -> usize {
        &self.address as *const _ as usize
    }
}

/// A Unix socket for packets in sequence. Close-on-exec.
pub(crate) fn socket(nonblocking: bool) -> Result<Fd> {
    let flags = if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    net::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags, 0)
}

/// A socket to connect and send from. It does not block, and nobody can send to it: its peer gets EPIPE. The thread
/// that closes a socket closes with it what waits there. So this socket may be connected to anybody.
pub(crate) fn deaf_socket() -> Result<Fd> {
    let fd = socket(true)?;
    // The kernel does so before the socket is connected as well.
    net::shutdown(fd, libc::SHUT_RD).map(|()| fd).inspect_err(|_| file::close(fd))
}

/// A socket of that name, which is a file's that only this user may write to. It does not block and does not listen yet.
/// EADDRINUSE if there is such a file.
pub(crate) fn bind_privately(name: &Name) -> Result<Fd> {
    let fd = socket(true)?;
    // The file gets the socket's mode, so no process comes before it is changed.
    let bound = file::set_mode(fd, 0o600).and_then(|()| call!(bind, fd, name.at(), name.length));
    bound.map(|_| fd).inspect_err(|_| file::close(fd))
}

/// A socket of that name, which does not block and does not listen yet. EADDRINUSE if there is one already.
pub(crate) fn bind(name: &Name) -> Result<Fd> {
    let fd = socket(true)?;
    let bound = call!(bind, fd, name.at(), name.length);
    bound.map(|_| fd).inspect_err(|_| file::close(fd))
}

/// A socket of that name for datagrams that begin with `secret`. The kernel drops all others in their sender's own call, which
/// closes what came with them, and says nothing. EADDRINUSE if there is one of that name already.
pub(crate) fn bind_datagrams(name: &Name, secret: &[u8; 8]) -> Result<Fd> {
    let fd = datagrams()?;
    // Nothing comes before there is a name.
    let bound = let_in(fd, secret).and_then(|()| call!(bind, fd, name.at(), name.length));
    bound.map(|_| fd).inspect_err(|_| file::close(fd))
}

/// Has the socket let only packets in that begin with these bytes.
fn let_in(fd: Fd, start: &[u8; 8]) -> Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let word =
        |at: usize| u32::from_be_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
    // A load beyond the end of a packet drops it.
    let mut program = [
        step(LOAD, 0, 0),
        step(JUMP_IF, 3, word(0)),
        step(LOAD, 0, 4),
        step(JUMP_IF, 1, word(4)),
        step(RETURN, 0, u32::MAX),
        step(RETURN, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    net::set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// A socket to send datagrams from.
pub(crate) fn datagrams() -> Result<Fd> {
    net::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)
}

/// Sends one datagram to the socket of that name, without waiting.
pub(crate) fn send_to(fd: Fd, name: &Name, bytes: &[u8]) -> Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    call!(sendto, fd, bytes.as_ptr() as usize, bytes.len(), flags, name.at(), name.length)
}

/// Connects to the listener of that name. ECONNREFUSED if there is none.
pub(crate) fn connect(fd: Fd, name: &Name) -> Result<()> {
    call!(connect, fd, name.at(), name.length).map(drop)
}

/// Asks whether the socket of that name is gone. It asks by a socket of another kind, which cannot be connected: so nothing
/// waits in the queue of a process that never looks.
pub(crate) fn probe_abandoned(name: &Name) -> bool {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let Ok(fd) = net::socket(libc::AF_UNIX, kind, 0) else { return false };
    let connected = connect(fd, name);
    file::close(fd);
    connected == Err(Errno(libc::ECONNREFUSED))
}

/// The process at the other end and its user (pid, uid), as the kernel noted them at connect or listen.
pub(crate) fn peer_credentials(fd: Fd) -> Result<(u32, u32)> {
    let mut c = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as u32;
    call!(
        getsockopt,
        fd,
        libc::SOL_SOCKET,
        libc::SO_PEERCRED,
        &mut c as *mut _ as usize,
        &mut length as *mut _ as usize
    )?;
    Ok((c.pid as u32, c.uid))
}

#[repr(C, align(8))]
struct Control([u8; 64]);

/// Most descriptors of one packet.
pub(crate) const PASSED: usize = 4;

/// Sends one packet with at most [`PASSED`] descriptors, without waiting. EINVAL for more.
pub(crate) fn send_passing(fd: Fd, bytes: &[u8], pass: &[Fd]) -> Result<usize> {
    if pass.len() > PASSED {
        return Err(Errno(libc::EINVAL));
    }
    let size = size_of_val(pass) as u32;
    let mut control = Control([0; 64]);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: msghdr is plain data; the control buffer is aligned and large enough for so many.
    let message = unsafe {
        let mut m: libc::msghdr = std::mem::zeroed();
        m.msg_iov = &mut iov;
        m.msg_iovlen = 1;
        if !pass.is_empty() {
            m.msg_control = control.0.as_mut_ptr().cast();
            m.msg_controllen = libc::CMSG_SPACE(size) as usize;
            let c = libc::CMSG_FIRSTHDR(&m);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(size) as usize;
            libc::CMSG_DATA(c).copy_from_nonoverlapping(pass.as_ptr().cast(), size as usize);
        }
        m
    };
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    call!(sendmsg, fd, &message as *const _ as usize, flags)
}

/// Receives one packet and at most `N` descriptors (close-on-exec), without waiting. Any more are closed. No bytes mean
/// the end, but the kernel may be wrong once: see [`caller`](super::caller).
pub(crate) fn receive_passing<const N: usize>(
    fd: Fd,
    buffer: &mut [u8],
) -> Result<(usize, [Option<Fd>; N])> {
    let mut control = Control([0; 64]);
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data; all pointers outlive the call.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let n = call!(recvmsg, fd, &mut message as *mut _ as usize, flags)?;
    let mut passed = [None; N];
    let mut places = passed.iter_mut();
    // SAFETY: the kernel wrote well-formed control messages within msg_controllen.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(&message);
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*c).cmsg_len - libc::CMSG_LEN(0) as usize) / 4;
                for i in 0..count {
                    let fd = libc::CMSG_DATA(c).cast::<i32>().add(i).read_unaligned();
                    match places.next() {
                        Some(place) => *place = Some(fd),
                        None => file::close(fd),
                    }
                }
            }
            c = libc::CMSG_NXTHDR(&message, c);
        }
    }
    Ok((n, passed))
}
