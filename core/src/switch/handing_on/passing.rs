//! Descriptors that a message takes to another process (SCM_RIGHTS): connections go back to TCP before, and stay there.

use crate::switch::handing_on::bring_back;
use crate::sys::cmsg;
use crate::sys::user::{self, Access};
use crate::sys::Fd;
use smallvec::SmallVec;

/// Before the program sends a message over a socket that is not on the SAN: true if it may. False: what one of its
/// descriptors refers to is on the SAN, and has to stay there.
///
/// # Safety
/// The message is the program's, and stays as it is during the call.
pub unsafe fn before_message(message: *const libc::msghdr) -> bool {
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { control_of(message) }) else { return true };
    let mut fds: SmallVec<[Fd; 16]> = SmallVec::new();
    let _ = cmsg::each(given, |level, kind, data| {
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            fds.extend(cmsg::descriptors(data));
        }
    });
    bring_back::before_passing(&fds)
}

/// The control messages, where there are any that can be read.
unsafe fn control_of<'a>(message: *const libc::msghdr) -> Option<&'a [u8]> {
    let header = user::read(message).ok()?;
    let (at, length) = (header.msg_control.cast::<u8>(), header.msg_controllen);
    if length < cmsg::HEADER || at.is_null() {
        return None;
    }
    user::check(at, length, Access::Read).ok()?;
    // SAFETY: readable, and the caller's promise.
    Some(unsafe { std::slice::from_raw_parts(at, length) })
}
