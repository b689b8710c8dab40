//! Descriptors that a message takes to another process (SCM_RIGHTS). Their connections go back to TCP before, and stay
//! there.

use crate::switch::handing_on::bring_back;
use crate::sys::{cmsg, Fd};
use smallvec::SmallVec;

/// Before the program sends a message with these control messages over a socket that is not on the SAN: true if it may.
/// False: what one of its descriptors refers to is on the SAN, and has to stay there.
pub fn before_message(control: &[u8]) -> bool {
    let mut fds: SmallVec<[Fd; 16]> = SmallVec::new();
    let _ = cmsg::each(control, |level, kind, data| {
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            fds.extend(cmsg::descriptors(data));
        }
    });
    bring_back::before_passing(&fds)
}
