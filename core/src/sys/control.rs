//! Control messages of sendmsg and recvmsg: read, and written as the kernel writes them.

use super::{Errno, Fd, Result};

/// Bytes of a control message before its data.
pub const HEADER: usize = size_of::<libc::cmsghdr>();
/// Most descriptors in a message (SCM_MAX_FD).
pub const MOST_DESCRIPTORS: usize = 253;

/// Room for whatever the kernel puts beside a message that a Unix socket brings.
#[repr(C, align(8))]
pub struct Room(pub [u8; 4096]);

/// Bytes of memory that `n` take up.
fn aligned(n: usize) -> usize {
    n.next_multiple_of(size_of::<usize>())
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

/// Adds an SCM_RIGHTS message with these descriptors to others.
pub fn append_rights(control: &mut Vec<u8>, fds: impl Iterator<Item = Fd>) {
    control.resize(aligned(control.len()), 0);
    let start = control.len();
    control.resize(start + HEADER, 0);
    for fd in fds {
        control.extend(fd.to_ne_bytes());
    }
    let header = libc::cmsghdr {
        cmsg_len: control.len() - start,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    // SAFETY: that many bytes are there.
    unsafe { control[start..].as_mut_ptr().cast::<libc::cmsghdr>().write_unaligned(header) };
    control.resize(aligned(control.len()), 0);
}

/// Writes control messages to where a program wants them, with the kernel's rules for what does not
/// fit.
pub struct Writer<'a> {
    left: &'a mut [u8],
    /// Something did not fit (MSG_CTRUNC).
    pub truncated: bool,
}

impl<'a> Writer<'a> {
    /// To `room`.
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { left: room, truncated: false }
    }

    /// Bytes that are free.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// As put_cmsg: what does not fit is cut off.
    pub fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let wanted = HEADER + data.len();
        if self.left.len() < HEADER {
            self.truncated = true;
            return;
        }
        let length = wanted.min(self.left.len());
        self.truncated |= length < wanted;
        let header = libc::cmsghdr { cmsg_len: length, cmsg_level: level, cmsg_type: kind };
        // SAFETY: at least a header's bytes are there.
        unsafe { self.left.as_mut_ptr().cast::<libc::cmsghdr>().write_unaligned(header) };
        self.left[HEADER..length].copy_from_slice(&data[..length - HEADER]);
        let used = aligned(wanted).min(self.left.len());
        self.left = &mut std::mem::take(&mut self.left)[used..];
    }

    /// As scm_detach_fds: as many descriptors as fit, in whole. How many those are.
    pub fn put_rights(&mut self, fds: &[Fd]) -> usize {
        let room = self.left.len().saturating_sub(HEADER) / size_of::<Fd>();
        let count = fds.len().min(room);
        self.truncated |= count < fds.len();
        if count > 0 {
            let data: Vec<u8> = fds[..count].iter().flat_map(|fd| fd.to_ne_bytes()).collect();
            self.put(libc::SOL_SOCKET, libc::SCM_RIGHTS, &data);
        }
        count
    }
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
    fn what_is_appended_is_read() {
        let mut control = Vec::new();
        append_rights(&mut control, [7].into_iter());
        // A program need not count the padding.
        control.truncate(20);
        append_rights(&mut control, [8, 9, -1].into_iter());
        assert_eq!(rights(&control), [7, 8, 9, -1]);
        assert_eq!(each(&control[..17], |_, _, _| ()), Err(Errno(libc::EINVAL)));
        assert_eq!(rights(&[0; 7]), []);
    }

    /// With the kernel's own answers for the same buffers beside.
    #[test]
    fn what_does_not_fit_is_cut_off_as_the_kernel_does() {
        for (room, fits, used) in
            [(0, 0, 0), (16, 0, 0), (19, 0, 0), (20, 1, 20), (23, 1, 23), (24, 2, 24), (40, 3, 32)]
        {
            let mut bytes = vec![0u8; room];
            let mut writer = Writer::new(&mut bytes);
            assert_eq!(writer.put_rights(&[3, 4, 5]), fits, "{room}");
            assert_eq!((writer.truncated, room - writer.left()), (fits < 3, used), "{room}");
            assert_eq!(rights(&bytes[..used]), [3, 4, 5][..fits], "{room}");
        }
        let mut bytes = [0u8; 18];
        let mut writer = Writer::new(&mut bytes);
        writer.put(1, 2, &[9; 12]);
        assert!(writer.truncated && writer.left() == 0);
        assert_eq!(bytes[..8], 18u64.to_ne_bytes());
    }
}
