//! Addresses in transfers. A connected stream needs none and gives none. But the library looks at the program's
//! addresses as the kernel does.

use libc::{c_int, msghdr, sockaddr, sockaddr_storage, socklen_t};
use sanshim_core::sys::user::{self, Access};
use sanshim_core::sys::{Errno, Result};

const LARGEST: usize = size_of::<sockaddr_storage>();

/// Looks at the address that sendto is given.
#[cold]
pub(super) fn of_send(to: *const sockaddr, length: socklen_t) -> Result<()> {
    match usize::try_from(length as c_int) {
        Ok(length @ ..=LARGEST) => user::check(to.cast(), length, Access::Read),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Looks at the address in a message that is sent. The kernel takes the beginning of one that is too long.
pub(super) fn of_message(message: &msghdr) -> Result<()> {
    match message.msg_name.is_null() {
        true => Ok(()),
        false => user::check(
            message.msg_name.cast(),
            LARGEST.min(message.msg_namelen as usize),
            Access::Read,
        ),
    }
}

/// Says in `length` that bytes which were received came with no address, for a program that gave a place for one.
#[cold]
pub(super) fn none_received(length: *mut socklen_t) -> Result<()> {
    if (user::read(length)? as c_int) < 0 {
        return Err(Errno(libc::EINVAL));
    }
    user::write(length, 0)
}
