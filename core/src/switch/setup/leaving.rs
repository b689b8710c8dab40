//! Whether a connection may leave TCP.

use super::holders;
use crate::reason::Reason;
use crate::switch::anchor::options;
use crate::switch::policy;
use crate::switch::socket::Socket;
use crate::sys::file;

/// Why the connection has to stay on TCP for now, if it does. Forgets holders that died.
pub(super) fn check_leaving(socket: &Socket) -> Result<(), Reason> {
    policy::may_leave_tcp()?;
    if holders::look_for_others(socket) {
        return Err(Reason::Shared);
    }
    if options::unsupported(socket) {
        return Err(Reason::UnsupportedOption);
    }
    if file::status_flags(socket.anchor()).is_ok_and(|flags| flags & libc::O_ASYNC != 0) {
        return Err(Reason::TcpOnly);
    }
    if socket.shares_end() {
        Err(Reason::Shared)
    } else {
        Ok(())
    }
}
