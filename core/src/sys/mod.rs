//! Raw system calls.
//!
//! Inside `libsanshim.so` the libc names (`send`, `close`, ...) are the shim's own hooks, so the core must never call
//! them. Everything here goes to the kernel directly. It returns `Result<_, Errno>`, and does not touch `errno`.

pub(crate) mod access_list;
pub mod actions;
pub(crate) mod apart;
pub(crate) mod bell;
pub mod blocking;
pub(crate) mod bound_names;
pub(crate) mod caller;
pub(crate) mod closing;
pub mod cmsg;
pub mod errno;
pub mod event_array;
pub mod file;
pub(crate) mod folder;
pub(crate) mod futex;
pub mod handlers;
mod headers;
pub mod hidden;
pub mod jump;
pub(crate) mod lender;
pub(crate) mod limits;
pub(crate) mod listener_user;
pub mod lock;
pub mod lock_order;
pub mod mounts;
pub mod net;
mod no_limit;
pub(crate) mod packet;
pub mod pipe;
pub mod poll;
pub mod process;
pub(crate) mod quiet_write;
pub(crate) mod roomy;
pub mod rw_flags;
pub(crate) mod scratch;
pub(crate) mod sealed;
pub(crate) mod sent_segment;
pub mod signal_mask;
pub mod sock_diag;
pub(crate) mod sockets_of;
pub(crate) mod syn;
pub(crate) mod tcp_connections;
pub mod thread;
mod thread_word;
pub mod time;
#[cfg(debug_assertions)]
pub(crate) mod under_lock;
pub mod user;
pub(crate) mod user_folder;
mod user_map;

use std::ffi::c_int;

/// The number of a file descriptor. The caller knows to whom it belongs.
pub type Fd = c_int;

/// Bytes of the smallest page. Mappings and advice are rounded to it.
pub(crate) const PAGE: usize = 4096;

/// An error number as the kernel gave it (always positive).
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", std::io::Error::from_raw_os_error(*.0))]
pub struct Errno(pub c_int);

/// Result of a system call.
pub type Result<T> = std::result::Result<T, Errno>;

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// One system call, with the arguments as the kernel takes them. Pointers among them must be valid for the call.
macro_rules! call {
    ($name:ident $(, $arg:expr)* $(,)?) => {{
        #[cfg(debug_assertions)]
        $crate::sys::under_lock::check(::syscalls::Sysno::$name, &[$($arg as usize),*]);
        // SAFETY: the wrapper that expands this passes pointers that are valid for the call.
        unsafe { ::syscalls::syscall!(::syscalls::Sysno::$name $(, $arg)*) }
            .map_err(|e| $crate::sys::Errno(e.into_raw()))
    }};
}
pub(crate) use call;

/// A raw system call, for hooks that hand on the program's own arguments.
///
/// # Safety
/// The arguments must be what the kernel expects of call `number`.
pub unsafe fn raw(number: usize, a: [usize; 6]) -> Result<usize> {
    let sysno = ::syscalls::Sysno::new(number).ok_or(Errno(libc::ENOSYS))?;
    // SAFETY: the caller vouches for the arguments.
    unsafe { ::syscalls::syscall!(sysno, a[0], a[1], a[2], a[3], a[4], a[5]) }
        .map_err(|e| Errno(e.into_raw()))
}
