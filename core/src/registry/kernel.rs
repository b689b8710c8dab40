//! The system calls that the writer needs, made directly.
//!
//! In a process under the shim libc's `read`, `close` and others are our own hooks. libc's `open` is a cancellation
//! point and changes the program's errno. None of that may happen here.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;

use syscalls::{syscall, Errno, Sysno};

use crate::sys::{self, call};

fn os(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.into_raw())
}

fn from_sys(error: sys::Errno) -> io::Error {
    io::Error::from_raw_os_error(error.0)
}

/// A descriptor that is closed when dropped.
pub(super) struct OwnedDescriptor(i32);

impl OwnedDescriptor {
    pub(super) fn raw(&self) -> i32 {
        self.0
    }
}

impl Drop for OwnedDescriptor {
    fn drop(&mut self) {
        // There is no remedy for a failed close.
        sys::file::close(self.0);
    }
}

/// `openat` with close-on-exec. `at` may be `AT_FDCWD`.
pub(super) fn open(at: i32, path: &CStr, flags: i32, mode: u32) -> io::Result<OwnedDescriptor> {
    call!(openat, at, path.as_ptr() as usize, flags | libc::O_CLOEXEC, mode)
        .map(|fd| OwnedDescriptor(fd as i32))
        .map_err(from_sys)
}

pub(super) fn make_folder(path: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: `path` is NUL-terminated and outlives the call.
    unsafe { syscall!(Sysno::mkdirat, libc::AT_FDCWD, path.as_ptr(), mode) }.map(drop).map_err(os)
}

pub(super) fn set_mode(fd: &OwnedDescriptor, mode: u32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::fchmod, fd.raw(), mode) }.map(drop).map_err(os)
}

pub(super) fn status(fd: &OwnedDescriptor) -> io::Result<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: on 64-bit Linux libc::stat is the kernel's struct, and the call fills it.
    unsafe { syscall!(Sysno::fstat, fd.raw(), status.as_mut_ptr()) }.map_err(os)?;
    // SAFETY: filled by the successful call above.
    Ok(unsafe { status.assume_init() })
}

/// `stat`, which follows symbolic links.
pub(super) fn status_of(path: &CStr) -> io::Result<libc::stat> {
    let fd = open(libc::AT_FDCWD, path, libc::O_PATH, 0)?;
    status(&fd)
}

/// Holds the file for as long as any process has this opened file, or a mapping of it, even without a descriptor. Fails
/// where another process holds it.
pub(super) fn hold(fd: &OwnedDescriptor) -> io::Result<()> {
    let lock = whole_file(libc::F_WRLCK);
    // SAFETY: the kernel reads one struct flock.
    unsafe { syscall!(Sysno::fcntl, fd.raw(), libc::F_OFD_SETLK, &raw const lock) }
        .map(drop)
        .map_err(os)
}

/// True if some process [holds](hold) a file, in whichever namespaces it is.
pub(super) fn is_held(fd: i32) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_RDLCK);
    // SAFETY: the kernel reads and writes one struct flock.
    unsafe { syscall!(Sysno::fcntl, fd, libc::F_OFD_GETLK, &raw mut lock) }.map_err(os)?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn whole_file(kind: i32) -> libc::flock {
    // SAFETY: plain data, of which zero is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as i16, libc::SEEK_SET as i16);
    lock
}

pub(super) fn set_length(fd: &OwnedDescriptor, length: usize) -> io::Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::ftruncate, fd.raw(), length) }.map(drop).map_err(os)
}

/// The largest file that this process may make, in bytes. To grow a file past it raises SIGXFSZ.
pub(super) fn file_size_limit() -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit64>::uninit();
    // SAFETY: the kernel fills one rlimit64 (its struct rlimit64 for this call).
    let done = unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_FSIZE, 0, limit.as_mut_ptr()) };
    match done {
        // SAFETY: filled by the successful call.
        Ok(_) => unsafe { limit.assume_init() }.rlim_cur,
        Err(_) => u64::MAX,
    }
}

/// Maps `length` bytes anywhere: of the file, shared. Without a file it is private memory of zeros.
pub(super) fn map(file: Option<&OwnedDescriptor>, length: usize) -> io::Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let (flags, fd) = match file {
        Some(fd) => (libc::MAP_SHARED, fd.raw()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
    };
    // SAFETY: the kernel chooses an unused address, so nothing existing is touched.
    unsafe { syscall!(Sysno::mmap, 0, length, protection, flags, fd, 0) }
        .map(|address| address as *mut u8)
        .map_err(os)
}

/// Moves the mapping at `from` to `to`, and replaces the mapping there in one step.
///
/// # Safety
/// Both are mappings of `length` bytes made by [`map`], and nothing refers to the address `from` any more.
pub(super) unsafe fn move_over(from: *mut u8, to: *mut u8, length: usize) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::mremap, from, length, length, flags, to) }.map(drop).map_err(os)
}

/// # Safety
/// `address` is a mapping of `length` bytes made by [`map`] that nothing refers to.
pub(super) unsafe fn unmap(address: *mut u8, length: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { syscall!(Sysno::munmap, address, length) };
}

/// Makes sure that the page at `address` has memory, by letting the kernel write 16 bytes there.
///
/// If the tmpfs is full, a store of ours would raise SIGBUS. The kernel's own store fails with EFAULT instead, which is ENOSPC here.
///
/// # Safety
/// The 16 bytes at `address` lie in a live mapping and may be overwritten.
pub(super) unsafe fn reserve(address: *mut u8) -> io::Result<()> {
    // SAFETY: the kernel stores one timespec (16 bytes) there, as the caller allows.
    unsafe { syscall!(Sysno::clock_gettime, libc::CLOCK_MONOTONIC, address) }
        .map(drop)
        .map_err(|e| os(if e == Errno::EFAULT { Errno::ENOSPC } else { e }))
}

pub(super) fn rename(folder: &OwnedDescriptor, from: &CStr, to: &CStr) -> io::Result<()> {
    let at = folder.raw();
    // SAFETY: both names are NUL-terminated and outlive the call.
    unsafe { syscall!(Sysno::renameat2, at, from.as_ptr(), at, to.as_ptr(), 0) }
        .map(drop)
        .map_err(os)
}

pub(super) fn unlink(folder: &OwnedDescriptor, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` is NUL-terminated and outlives the call.
    unsafe { syscall!(Sysno::unlinkat, folder.raw(), name.as_ptr(), 0) }.map(drop).map_err(os)
}

/// Removes `name` if it still names `file`. A later process that got the same id may have put its own file there.
pub(super) fn unlink_same(
    folder: &OwnedDescriptor,
    name: &CStr,
    file: &OwnedDescriptor,
) -> io::Result<()> {
    let now = open(folder.raw(), name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    let (now, then) = (status(&now)?, status(file)?);
    if (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino) {
        unlink(folder, name)?;
    }
    Ok(())
}

/// One `read`, tried again when a signal interrupts it.
pub(super) fn read(fd: &OwnedDescriptor, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match sys::file::read(fd.raw(), buffer.as_mut_ptr(), buffer.len()) {
            Err(sys::Errno(libc::EINTR)) => {}
            result => return result.map_err(from_sys),
        }
    }
}

/// The next entries of a folder, as the kernel's `linux_dirent64` records. Gives 0 bytes at the end.
pub(super) fn read_entries(folder: &OwnedDescriptor, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes into the slice.
    unsafe { syscall!(Sysno::getdents64, folder.raw(), buffer.as_mut_ptr(), buffer.len()) }
        .map_err(os)
}

pub(super) fn process_id() -> u32 {
    // SAFETY: no memory is involved; the call cannot fail.
    unsafe { syscall!(Sysno::getpid) }.map_or(0, |pid| pid as u32)
}

pub(super) fn effective_user() -> u32 {
    // SAFETY: no memory is involved; the call cannot fail.
    unsafe { syscall!(Sysno::geteuid) }.map_or(u32::MAX, |uid| uid as u32)
}

/// True when no process has this id.
pub(super) fn is_gone(pid: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let result = unsafe { syscall!(Sysno::kill, pid, 0) };
    result == Err(Errno::ESRCH)
}
