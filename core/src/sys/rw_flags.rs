//! The flags of preadv2 and pwritev2 on a socket. The kernel says which of the later ones it has.

use super::{call, file, net, Errno, Result};
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// From Linux 6.18 on: no SIGPIPE.
const RWF_NOSIGNAL: c_int = 0x100;
/// The flags that each supported kernel has. All but the last have no effect on a socket.
const KNOWN: c_int =
    libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND | libc::RWF_NOWAIT;

/// The flags of recv or send that mean the same. `sends`: it is pwritev2.
///
/// # Errors
/// The kernel's, for flags that it does not take for a socket.
pub fn of_message(flags: c_int, sends: bool) -> Result<c_int> {
    if flags & !KNOWN != 0 {
        ask(flags, sends)?;
    }
    let mut meant = 0;
    if flags & libc::RWF_NOWAIT != 0 {
        meant |= libc::MSG_DONTWAIT;
    }
    if flags & RWF_NOSIGNAL != 0 && sends {
        meant |= libc::MSG_NOSIGNAL;
    }
    Ok(meant)
}

/// Tries the flags on a socket that has nobody to send to and nothing to read.
#[cold]
fn ask(flags: c_int, sends: bool) -> Result<()> {
    /// The flags that were last taken, for reading and for writing.
    static TAKEN: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
    let taken = &TAKEN[usize::from(sends)];
    if taken.load(Relaxed) == flags {
        return Ok(());
    }
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let Ok(fd) = net::socket(libc::AF_UNIX, kind, 0) else {
        return Err(Errno(libc::EOPNOTSUPP));
    };
    let mut byte = 0u8;
    let one = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let at = &raw const one as usize;
    let said = match sends {
        true => call!(pwritev2, fd, at, 1, -1isize as usize, -1isize as usize, flags),
        false => call!(preadv2, fd, at, 1, -1isize as usize, -1isize as usize, flags),
    };
    file::close(fd);
    match said {
        Err(Errno(e @ (libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::EPERM))) => {
            Err(Errno(e))
        }
        // The socket has no peer, or nothing to read.
        _ => {
            taken.store(flags, Relaxed);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_which_flags_there_are() {
        assert_eq!(of_message(libc::RWF_NOWAIT | libc::RWF_SYNC, true), Ok(libc::MSG_DONTWAIT));
        for sends in [false, true] {
            assert_eq!(of_message(1 << 30, sends), Err(Errno(libc::EOPNOTSUPP)));
        }
        let silent = of_message(RWF_NOSIGNAL, true);
        assert!([Ok(libc::MSG_NOSIGNAL), Err(Errno(libc::EOPNOTSUPP))].contains(&silent));
        assert_eq!(of_message(RWF_NOSIGNAL, true), silent);
    }
}
