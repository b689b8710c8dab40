//! Sockets of other processes, by what the kernel says of their descriptors.

use super::{call, file, process, Errno, Fd, Result};

/// The [`identity`](file::identity) of a socket of process `pid`, which has to be a process of this user. Of anything else no file system is
/// asked.
pub(crate) fn identity_in(pid: u32, fd: Fd) -> Result<(u64, u64)> {
    if pid == process::pid() {
        return file::identity(fd);
    }
    let path = Text::<40>::of(format_args!("/proc/{pid}/fd/{fd}"))?;
    if !link(&path)?.as_bytes().starts_with(b"socket:[") {
        return Err(Errno(libc::ENOTSOCK));
    }
    // SAFETY: stat is plain data, zero is a valid value of it.
    let mut s: libc::stat = unsafe { std::mem::zeroed() };
    call!(newfstatat, libc::AT_FDCWD, path.at(), &mut s as *mut _ as usize, 0)?;
    Ok((s.st_dev, s.st_ino))
}

/// The number of a descriptor of process `pid` for the socket with this inode. Of what else the process has open no file system
/// is asked: that process may serve it, or wait for it itself.
pub(crate) fn socket_in(pid: u32, inode: u64) -> Option<Fd> {
    let folder = Text::<24>::of(format_args!("/proc/{pid}/fd")).ok()?;
    let wanted = Text::<40>::of(format_args!("socket:[{inode}]")).ok()?;
    let is_it = |fd: Fd| {
        let path = Text::<40>::of(format_args!("/proc/{pid}/fd/{fd}"));
        let found = path.and_then(|path| link(&path));
        found.is_ok_and(|found| found.as_bytes() == wanted.as_bytes())
    };
    let mut found = None;
    let path = std::ffi::CStr::from_bytes_until_nul(&folder.0).ok()?;
    let _ = file::each_number_in(path, |fd, _| found = found.or_else(|| is_it(fd).then_some(fd)));
    found
}

/// Text that ends with zero, without an allocation.
struct Text<const N: usize>([u8; N], usize);

impl<const N: usize> Text<N> {
    /// ENAMETOOLONG for more than fits.
    fn of(text: std::fmt::Arguments<'_>) -> Result<Self> {
        let mut bytes = [0; N];
        // A zero stays behind it.
        let mut rest = &mut bytes[..N - 1];
        std::io::Write::write_fmt(&mut rest, text).map_err(|_| Errno(libc::ENAMETOOLONG))?;
        let length = N - 1 - rest.len();
        Ok(Self(bytes, length))
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }

    fn at(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

/// What a link of /proc says, cut off where it is longer than any of a socket.
fn link<const N: usize>(path: &Text<N>) -> Result<Text<40>> {
    let mut link = Text([0; 40], 0);
    let (to, size) = (link.0.as_mut_ptr() as usize, link.0.len());
    link.1 = call!(readlinkat, libc::AT_FDCWD, path.at(), to, size)?;
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file::{identity, is_socket};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_socket_of_another_process_is_found_by_its_inode() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let has = std::os::fd::OwnedFd::from(listener.try_clone().unwrap());
        let mut child = std::process::Command::new("sleep");
        let mut child = child.arg("60").stdin(has).spawn().unwrap();
        let (_, inode) = identity(listener.as_raw_fd()).unwrap();
        let (_, another) = identity(other.as_raw_fd()).unwrap();
        assert_eq!(socket_in(child.id(), inode), Some(0));
        assert_eq!(socket_in(child.id(), another), None);
        assert_eq!(identity_in(child.id(), 0), identity(listener.as_raw_fd()));
        // Its standard output, of which a file system would be asked.
        assert_eq!(identity_in(child.id(), 1), Err(Errno(libc::ENOTSOCK)));
        assert!(is_socket(other.as_raw_fd()) && !is_socket(-1));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
