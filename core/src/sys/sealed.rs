//! Memory whose size is sealed, so that nobody can shrink it while it is mapped.

use super::{call, file, Errno, Fd, Result};

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// An anonymous file of exactly `size` bytes. It is sealed, so that nobody can shrink it while it is mapped.
pub(crate) fn create(name: &std::ffi::CStr, size: usize) -> Result<Fd> {
    if !file::may_grow_to(size) {
        // To grow a file beyond that limit would raise SIGXFSZ in the program.
        return Err(Errno(libc::EFBIG));
    }
    let fd =
        call!(memfd_create, name.as_ptr() as usize, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)?
            as Fd;
    let sealed =
        call!(ftruncate, fd, size).and_then(|_| call!(fcntl, fd, libc::F_ADD_SEALS, SEALS));
    match sealed {
        Ok(_) => Ok(fd),
        Err(e) => {
            file::close(fd);
            Err(e)
        }
    }
}

/// True if `fd` is memory whose size cannot change any more. This waits for nothing else, whatever it is. Memory of
/// huge pages does not count: the kernel kills a process that uses it where they run out.
pub(crate) fn is_sealed(fd: Fd) -> bool {
    // SAFETY: statfs is plain data, zero is a valid value of it.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // Only memory has seals, so the second question is to a file system of the kernel's own.
    call!(fcntl, fd, libc::F_GET_SEALS, 0).is_ok_and(|seals| seals as i32 & SEALS == SEALS)
        && call!(fstatfs, fd, &mut system as *mut _ as usize).is_ok()
        && system.f_type == libc::TMPFS_MAGIC
}

/// What the kernel says of memory that is sealed, so that its size cannot change any more. `None` if `fd` is something else.
pub(crate) fn stat(fd: Fd) -> Result<Option<libc::stat>> {
    // The size is asked last, because it is sealed by then.
    is_sealed(fd).then(|| file::stat(fd)).transpose()
}

/// Its size in bytes.
pub(crate) fn size_of(fd: Fd) -> Result<Option<u64>> {
    stat(fd).map(|memory| memory.map(|memory| memory.st_size as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_sealed_and_nothing_else() {
        let memory = create(c"test", 4096).unwrap();
        assert!(is_sealed(memory));
        assert_eq!(size_of(memory), Ok(Some(4096)));
        // SAFETY: a name.
        let unsealed = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING) };
        assert!(!is_sealed(unsealed));
        // SAFETY: as above.
        let huge = unsafe {
            libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB)
        };
        // A kernel may have no such pages.
        if huge >= 0 {
            call!(fcntl, huge, libc::F_ADD_SEALS, SEALS).unwrap();
            assert_eq!(size_of(huge), Ok(None));
            file::close(huge);
        }
        let event = file::eventfd(0).unwrap();
        assert_eq!(size_of(event), Ok(None));
        [memory, unsealed, event].into_iter().for_each(file::close);
    }
}
