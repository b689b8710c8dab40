//! Reads the control messages of sendmsg.

use super::user::{self, Access};
use super::{Errno, Fd, Result};

/// Bytes of a control message before its data.
const HEADER: usize = size_of::<libc::cmsghdr>();
/// Bytes of memory that `n` bytes take up among control messages.
fn aligned(n: usize) -> usize {
    n.next_multiple_of(size_of::<usize>())
}

/// The control messages of a program's message. `None` if it has none, or if they cannot be read.
///
/// # Safety
/// They stay as they are while the result exists.
pub unsafe fn of_message<'a>(message: *const libc::msghdr) -> Option<&'a [u8]> {
    let header = user::read(message).ok()?;
    let (at, length) = (header.msg_control.cast::<u8>(), header.msg_controllen);
    if length < HEADER || at.is_null() {
        return None;
    }
    user::check(at, length, Access::Read).ok()?;
    // SAFETY: readable, and the caller's promise.
    Some(unsafe { std::slice::from_raw_parts(at, length) })
}

/// Calls `each` with level, kind and data of every control message.
///
/// # Errors
/// EINVAL where the kernel would say so.
pub fn each(mut bytes: &[u8], mut each: impl FnMut(i32, i32, &[u8])) -> Result<()> {
    while bytes.len() >= HEADER {
        // SAFETY: that many bytes are there, and any are a valid header.
        let header = unsafe { bytes.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        let length = header.cmsg_len;
        let data = bytes.get(HEADER..length).ok_or(Errno(libc::EINVAL))?;
        each(header.cmsg_level, header.cmsg_type, data);
        bytes = bytes.get(aligned(length)..).unwrap_or(&[]);
    }
    Ok(())
}

/// The descriptors in the data of an SCM_RIGHTS message.
pub fn descriptors(data: &[u8]) -> impl Iterator<Item = Fd> + '_ {
    data.chunks_exact(size_of::<Fd>())
        .map(|fd| Fd::from_ne_bytes(fd.try_into().unwrap_or([0xff; 4])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(bytes: &[u8]) -> Vec<Fd> {
        let mut all = Vec::new();
        each(bytes, |level, kind, data| {
            assert_eq!((level, kind), (libc::SOL_SOCKET, libc::SCM_RIGHTS));
            all.extend(descriptors(data));
        })
        .unwrap();
        all
    }

    #[test]
    fn descriptors_are_read_as_far_as_the_kernel_would() {
        let mut control = Vec::new();
        for fds in [&[7][..], &[8, 9, -1]] {
            control.resize(aligned(control.len()), 0);
            let length = HEADER + size_of_val(fds);
            control.extend(length.to_ne_bytes());
            control.extend(libc::SOL_SOCKET.to_ne_bytes());
            control.extend(libc::SCM_RIGHTS.to_ne_bytes());
            fds.iter().for_each(|fd: &Fd| control.extend(fd.to_ne_bytes()));
        }
        assert_eq!(rights(&control), [7, 8, 9, -1]);
        assert_eq!(each(&control[..17], |_, _, _| ()), Err(Errno(libc::EINVAL)));
        assert_eq!(rights(&[0; 7]), []);
    }
}
