//! Sockets of other processes, by what the kernel says of their descriptors.

use super::{call, file, process, Errno, Fd, Result};

/// The [`identity`](file::identity) of a socket of process `pid`, which has to be a process of this user. If the
/// descriptor is anything else, this asks no file system.
pub(crate) fn identity_in(pid: u32, fd: Fd) -> Result<(u64, u64)> {
    if pid == process::pid() {
        return file::identity(fd);
    }
    let path = process::path_of(pid, format_args!("fd/{fd}"));
    if inode_at(&path)?.is_none() {
        return Err(Errno(libc::ENOTSOCK));
    }
    // SAFETY: stat is plain data, zero is a valid value of it.
    let mut s: libc::stat = unsafe { std::mem::zeroed() };
    let at = &mut s as *mut _ as usize;
    call!(newfstatat, libc::AT_FDCWD, path.as_ptr() as usize, at, 0)?;
    Ok((s.st_dev, s.st_ino))
}

/// The number of a descriptor of process `pid` for the socket with this inode. This asks no file system of what else
/// the process has open: that process may serve it, or wait for it itself.
pub(crate) fn socket_in(pid: u32, inode: u64) -> Option<Fd> {
    let is_it = |fd: Fd| {
        let path = process::path_of(pid, format_args!("fd/{fd}"));
        inode_at(&path).is_ok_and(|found| found == Some(inode))
    };
    let mut found = None;
    let folder = process::path_of(pid, "fd");
    let folder = std::ffi::CStr::from_bytes_until_nul(&folder).ok()?;
    let _ = file::each_number_in(folder, |fd, _| found = found.or_else(|| is_it(fd).then_some(fd)));
    found
}

/// The inode of the socket that a link of /proc leads to. `None` if that is no socket.
fn inode_at(path: &[u8; 40]) -> Result<Option<u64>> {
    // A link that says more is no socket's.
    let mut link = [0u8; 40];
    let (to, size) = (link.as_mut_ptr() as usize, link.len());
    let length = call!(readlinkat, libc::AT_FDCWD, path.as_ptr() as usize, to, size)?;
    let text = std::str::from_utf8(&link[..length]).ok();
    let number = text.and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
    Ok(number.and_then(|number| number.parse().ok()))
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
