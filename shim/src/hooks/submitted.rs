//! What lies in a ring of liburing's before it is submitted. The layout is that of liburing 2.

use libc::{c_int, c_uint, c_void};
use sanshim_core::switch::table;
use sanshim_core::sys::user;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether the library that a function is of lays rings out as described here.
pub(super) struct Layout(AtomicU8);

impl Layout {
    const UNKNOWN: u8 = 0;
    const IS_OTHER: u8 = 1;
    const IS_KNOWN: u8 = 2;

    pub(super) const fn new() -> Self {
        Self(AtomicU8::new(Self::UNKNOWN))
    }

    /// `function` is the same in each call. The name of liburing's file stands for its layout.
    pub(super) fn is_known(&self, function: *const c_void) -> bool {
        let mut found = self.0.load(Ordering::Relaxed);
        if found == Self::UNKNOWN {
            found = if is_of_liburing_2(function) { Self::IS_KNOWN } else { Self::IS_OTHER };
            self.0.store(found, Ordering::Relaxed);
        }
        found == Self::IS_KNOWN
    }
}

fn is_of_liburing_2(function: *const c_void) -> bool {
    let mut of = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr takes any address; it fills the answer in where it finds one, and the name lasts as long as the library.
    unsafe {
        libc::dladdr(function, of.as_mut_ptr()) != 0
            && CStr::from_ptr(of.assume_init().dli_fname).to_bytes().ends_with(b"liburing.so.2")
    }
}

/// `struct io_uring`, as far as it matters here.
#[repr(C)]
pub(super) struct Ring {
    submission: SubmissionQueue,
    completion: [usize; 11],
    /// How the ring was set up.
    flags: c_uint,
}

/// `struct io_uring_sq`.
#[repr(C)]
struct SubmissionQueue {
    head: *const c_uint,
    tail: *const c_uint,
    mask: *const c_uint,
    entries: *const c_uint,
    kernel_flags: *const c_uint,
    dropped: *const c_uint,
    order: *const c_uint,
    operations: *const Operation,
    /// The first operation that was not submitted, and the one behind the last.
    next: c_uint,
    end: c_uint,
    size: usize,
    memory: *const c_void,
    rest: [c_uint; 4],
}

const _: () =
    assert!(std::mem::offset_of!(Ring, flags) == 192 && size_of::<SubmissionQueue>() == 104);

/// The beginning of a `struct io_uring_sqe`, and its size.
#[repr(C)]
struct Operation {
    code: u8,
    flags: u8,
    priority: u16,
    fd: c_int,
    rest: [u64; 7],
}

const _: () = assert!(size_of::<Operation>() == 64);

/// IOSQE_FIXED_FILE: the descriptor is a number of a registered file.
const FIXED_FILE: u8 = 1;
/// Flags of a ring in which an operation may have another size: IORING_SETUP_SQE128, and those that are younger than this.
const OTHER_SIZES: c_uint = 1 << 10 | !0 << 19;

/// NOP, READV, WRITEV, FSYNC, READ_FIXED, WRITE_FIXED, SYNC_FILE_RANGE, TIMEOUT, TIMEOUT_REMOVE, ASYNC_CANCEL, LINK_TIMEOUT,
/// FALLOCATE, STATX, READ, WRITE, FADVISE, MADVISE, FTRUNCATE.
const OF_FILES: [u8; 18] = [0, 1, 2, 3, 4, 5, 8, 11, 12, 14, 15, 17, 21, 22, 23, 24, 25, 55];

impl Operation {
    fn is_of_file(&self) -> bool {
        OF_FILES.contains(&self.code) && (self.flags & FIXED_FILE != 0 || !table::is_known(self.fd))
    }
}

/// True if an operation that was not submitted yet is not one on a file, or may not be one.
#[inline(never)]
pub(super) fn submits_beyond_files(ring: &Ring) -> bool {
    let queue = &ring.submission;
    if queue.next == queue.end {
        return false;
    }
    if ring.flags & OTHER_SIZES != 0 || queue.mask.is_null() {
        return true;
    }
    let count = queue.end.wrapping_sub(queue.next);
    // SAFETY: liburing set the pointers when it made the ring; the mask keeps the numbers within the ring's operations, of which
    // these are not the kernel's yet.
    unsafe {
        let mask = queue.mask.read();
        count > mask.saturating_add(1)
            || (0..count).any(|at| {
                let number = queue.next.wrapping_add(at) & mask;
                !(*queue.operations.add(number as usize)).is_of_file()
            })
    }
}

/// True if one of these files, of which as many as can be read count, is a socket or a set.
pub(super) fn registers_sockets(files: *const c_int, count: c_uint) -> bool {
    (0..count as usize).map_while(|at| user::read(files.wrapping_add(at)).ok()).any(table::is_known)
}
