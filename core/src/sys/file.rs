//! Descriptors and mappings.

use super::{call, folder, Errno, Fd, Result, PAGE};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Closes a descriptor. Nobody here could do anything about an error.
pub fn close(fd: Fd) {
    let _ = call!(close, fd);
}

/// F_GETFL: status flags of the open file description.
pub(crate) fn status_flags(fd: Fd) -> Result<i32> {
    call!(fcntl, fd, libc::F_GETFL, 0).map(|v| v as i32)
}

/// True if calls on it do not wait (O_NONBLOCK).
pub(crate) fn is_nonblocking(fd: Fd) -> bool {
    status_flags(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0)
}

/// F_SETFL: status flags of the open file description.
pub(crate) fn set_status_flags(fd: Fd, flags: i32) -> Result<()> {
    call!(fcntl, fd, libc::F_SETFL, flags).map(drop)
}

/// F_GETFD: descriptor flags.
pub(crate) fn descriptor_flags(fd: Fd) -> Result<i32> {
    call!(fcntl, fd, libc::F_GETFD, 0).map(|v| v as i32)
}

/// F_SETFD: descriptor flags.
pub(crate) fn set_descriptor_flags(fd: Fd, flags: i32) -> Result<()> {
    call!(fcntl, fd, libc::F_SETFD, flags).map(drop)
}

/// The lowest number of our own descriptors, where the limit allows so many.
pub(crate) const FLOOR: Fd = 900;

/// Moves a descriptor of ours out of the program's way, to a high number. Close-on-exec. -1, with which every system call
/// fails, if the program has closed it, as one does that closes all that it does not know.
pub fn move_high(fd: Fd) -> Fd {
    for floor in [FLOOR, 100] {
        match call!(fcntl, fd, libc::F_DUPFD_CLOEXEC, floor) {
            Ok(high) => {
                close(fd);
                return high as Fd;
            }
            Err(Errno(libc::EBADF)) => return -1,
            Err(_) => {}
        }
    }
    fd
}

/// Another descriptor for the same file, with a high number. It is inherited over exec.
pub(crate) fn duplicate_high(fd: Fd) -> Result<Fd> {
    call!(fcntl, fd, libc::F_DUPFD, FLOOR).map(|fd| fd as Fd)
}

/// Another descriptor for the same file, with a number from `floor` up. Close-on-exec.
pub(super) fn duplicate_from(fd: Fd, floor: Fd) -> Result<Fd> {
    call!(fcntl, fd, libc::F_DUPFD_CLOEXEC, floor).map(|fd| fd as Fd)
}

/// How many descriptors this process has. `None` where /proc does not say.
pub(crate) fn count_open() -> Option<u64> {
    let folder = folder::open(c"/proc/self/fd").ok()?;
    // Linux 6.2 and newer have it there.
    let told = stat(folder).map_or(0, |status| status.st_size as u64);
    let mut count = told;
    if told == 0 {
        let _ = folder::each_name(folder, |_| count += 1);
    }
    close(folder);
    Some(count)
}

/// Makes `number` a descriptor of the file of `fd`, whatever it was before. It is inherited over exec.
pub(crate) fn put_at(fd: Fd, number: Fd) -> Result<()> {
    call!(dup3, fd, number, 0).map(drop)
}

/// Sets or clears close-on-exec.
pub(crate) fn set_close_on_exec(fd: Fd, on: bool) -> Result<()> {
    let flags = descriptor_flags(fd)?;
    let other = flags & !libc::FD_CLOEXEC;
    set_descriptor_flags(fd, if on { other | libc::FD_CLOEXEC } else { other })
}

/// True if `fd` is a pipe.
pub fn is_pipe(fd: Fd) -> bool {
    stat(fd).is_ok_and(|s| s.st_mode & libc::S_IFMT == libc::S_IFIFO)
}

/// True if `fd` is a terminal.
pub(crate) fn is_terminal(fd: Fd) -> bool {
    let mut settings = [0u8; 256];
    call!(ioctl, fd, libc::TCGETS, settings.as_mut_ptr() as usize).is_ok()
}

/// True if `fd` is a socket of this host's processes.
pub(crate) fn is_unix_socket(fd: Fd) -> bool {
    super::net::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
}

/// True if `fd` is a socket. This asks no file system of anything else, because it may not answer.
pub(crate) fn is_socket(fd: Fd) -> bool {
    super::net::option(fd, libc::SOL_SOCKET, libc::SO_TYPE).is_ok()
}

/// Device and inode of an open file. They tell a socket from others, by whichever descriptor it is reached.
pub(crate) fn identity(fd: Fd) -> Result<(u64, u64)> {
    stat(fd).map(|s| (s.st_dev, s.st_ino))
}

/// fstat.
pub fn stat(fd: Fd) -> Result<libc::stat> {
    // SAFETY: stat is plain data, zero is a valid value of it.
    let mut s: libc::stat = unsafe { std::mem::zeroed() };
    call!(fstat, fd, &mut s as *mut _ as usize)?;
    Ok(s)
}

/// Opens a file for reading, close-on-exec.
pub(crate) fn open_to_read(path: &std::ffi::CStr) -> Result<Fd> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    call!(openat, libc::AT_FDCWD, path.as_ptr() as usize, flags, 0).map(|fd| fd as Fd)
}

/// open.
pub fn open(path: &std::ffi::CStr, flags: i32, mode: u32) -> Result<Fd> {
    call!(openat, libc::AT_FDCWD, path.as_ptr() as usize, flags, mode).map(|fd| fd as Fd)
}

/// fchmod.
pub(crate) fn set_mode(fd: Fd, mode: u32) -> Result<()> {
    call!(fchmod, fd, mode).map(drop)
}

/// fchmodat. Follows symbolic links.
pub(crate) fn set_mode_of(path: &std::ffi::CStr, mode: u32) -> Result<()> {
    call!(fchmodat, libc::AT_FDCWD, path.as_ptr() as usize, mode).map(drop)
}

/// Reads into memory that may be the program's. A bad pointer is EFAULT.
pub fn read(fd: Fd, to: *mut u8, length: usize) -> Result<usize> {
    call!(read, fd, to as usize, length)
}

/// Positional read.
pub(crate) fn pread(fd: Fd, to: *mut u8, length: usize, offset: i64) -> Result<usize> {
    call!(pread64, fd, to as usize, length, offset)
}

/// Positional write.
pub(crate) fn pwrite(fd: Fd, bytes: &[u8], offset: i64) -> Result<usize> {
    call!(pwrite64, fd, bytes.as_ptr() as usize, bytes.len(), offset)
}

/// Writes from memory that may be the program's. A bad pointer is EFAULT.
pub fn write(fd: Fd, from: *const u8, length: usize) -> Result<usize> {
    call!(write, fd, from as usize, length)
}

/// Sets the file offset.
pub(crate) fn seek(fd: Fd, offset: i64, whence: i32) -> Result<u64> {
    call!(lseek, fd, offset, whence).map(|v| v as u64)
}

/// True if this process may write a file of so many bytes (RLIMIT_FSIZE).
pub(crate) fn may_grow_to(bytes: usize) -> bool {
    bytes as u64 <= size_limit()
}

/// RLIMIT_FSIZE, in bytes. A call that would make a file larger raises SIGXFSZ, which kills.
pub(crate) fn size_limit() -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let _ = call!(prlimit64, 0, libc::RLIMIT_FSIZE, 0, &mut limit as *mut _ as usize);
    limit.rlim_cur
}

/// Maps `fd`, or shared anonymous memory if `fd` is `None`, for reading and writing. It is left out of core dumps, which would
/// give memory to all of it.
pub(crate) fn map_shared(fd: Option<Fd>, size: usize) -> Result<*mut u8> {
    let (flags, fd) = match fd {
        Some(fd) => (libc::MAP_SHARED, fd),
        None => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
    };
    let at = map(size, flags, fd)?;
    let _ = call!(madvise, at as usize, size, libc::MADV_DONTDUMP);
    Ok(at)
}

/// True if the kernel commits no more memory than there is (`vm.overcommit_memory` is 2): a page of shared memory that is touched
/// for the first time may then end the process.
pub(crate) fn is_overcommit_strict() -> bool {
    static MODE: AtomicU8 = AtomicU8::new(0);
    const UNKNOWN: u8 = 0;
    const STRICT: u8 = b'2';
    let mut mode = MODE.load(Relaxed);
    if mode == UNKNOWN {
        if let Ok(fd) = open_to_read(c"/proc/sys/vm/overcommit_memory") {
            let _ = pread(fd, &mut mode, 1, 0);
            close(fd);
        }
        MODE.store(mode, Relaxed);
    }
    mode == STRICT
}

/// Maps private memory of zeros, which costs nothing until it is touched.
pub(crate) fn map_private(size: usize) -> Result<*mut u8> {
    map(size, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
}

fn map(size: usize, flags: i32, fd: Fd) -> Result<*mut u8> {
    call!(mmap, 0, size, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0).map(|p| p as *mut u8)
}

/// Gives memory to a part of a mapping that may never have been touched. Its contents stay. Does nothing before Linux
/// 5.14.
///
/// # Errors
/// ENOMEM if to touch it would end the process.
///
/// # Safety
/// `length` bytes at `at` are mapped for writing.
pub unsafe fn populate(at: *mut u8, length: usize) -> Result<()> {
    let start = at as usize & !(PAGE - 1);
    let length = at as usize + length - start;
    match call!(madvise, start, length, libc::MADV_POPULATE_WRITE) {
        Ok(_) | Err(Errno(libc::EINVAL)) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Gives the whole pages of shared memory between `at` and `at + length` back to the system. Afterwards they read as
/// zeros for everybody.
///
/// # Safety
/// They are mapped, and nobody needs their content.
pub unsafe fn free(at: *mut u8, length: usize) {
    let start = (at as usize).next_multiple_of(PAGE);
    let end = (at as usize + length) & !(PAGE - 1);
    if start < end {
        // If the kernel refuses, they stay.
        let _ = call!(madvise, start, end - start, libc::MADV_REMOVE);
    }
}

/// Keeps these pages from fork children.
///
/// # Safety
/// They are a mapping that no child touches.
pub(crate) unsafe fn keep_from_children(at: *mut u8, length: usize) {
    // If the kernel refuses, a child has them, and does not touch them.
    let _ = call!(madvise, at as usize, length, libc::MADV_DONTFORK);
}

/// Ends a mapping.
///
/// # Safety
/// Nothing may use the memory afterwards.
pub(crate) unsafe fn unmap(at: *mut u8, size: usize) {
    let _ = call!(munmap, at as usize, size);
}

/// An eventfd with the given count. It is readable for as long as that is above zero and no thread reads it.
pub(crate) fn eventfd(count: u32) -> Result<Fd> {
    call!(eventfd2, count, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).map(|fd| fd as Fd)
}

/// Calls `each` with every open descriptor of this process.
pub fn each_open(mut each: impl FnMut(Fd)) -> Result<()> {
    each_number_in(c"/proc/self/fd", |fd, folder| {
        if fd != folder {
            each(fd);
        }
    })
}

/// Calls `each` with every name in a folder that is a number, and the descriptor by which the folder is read.
pub(crate) fn each_number_in(path: &std::ffi::CStr, mut each: impl FnMut(Fd, Fd)) -> Result<()> {
    let folder = folder::open(path)?;
    let result = folder::each_name(folder, |name| {
        if let Some(number) = name.to_str().ok().and_then(|name| name.parse().ok()) {
            each(number, folder);
        }
    });
    close(folder);
    result
}

/// True if dup2 may give a file this number: it is below what RLIMIT_NOFILE allows now.
pub fn may_be_number(fd: Fd) -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    let _ = call!(prlimit64, 0, libc::RLIMIT_NOFILE, 0, &mut limit as *mut _ as usize);
    u64::try_from(fd).is_ok_and(|fd| fd < limit.rlim_cur)
}

/// True if close_range closes what it is asked to, if that is possible: it comes with Linux 5.9, and filters may forbid it.
pub fn can_close_ranges() -> bool {
    // The kernel does not like this range. A kernel without the call says something else.
    call!(close_range, 1, 0, 0) == Err(Errno(libc::EINVAL))
}

/// EBADF if `fd` is not open.
pub fn check_open(fd: Fd) -> Result<()> {
    match descriptor_flags(fd) {
        Err(Errno(libc::EBADF)) => Err(Errno(libc::EBADF)),
        _ => Ok(()),
    }
}
