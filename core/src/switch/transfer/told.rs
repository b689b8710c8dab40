//! What a call tells the program besides bytes. A call tells the error of a broken connection once.

use crate::switch::endpoint::flag;
use crate::switch::stream::Stream;
use crate::sys::{net, Errno};

/// Gives the error of a broken connection the first time, and `then` afterwards.
pub(super) fn reset_error(stream: &Stream, then: Result<usize, Errno>) -> Result<usize, Errno> {
    if stream.endpoint.set(flag::ERROR_REPORTED) {
        // The kernel may have noted the same error. It would tell that error to epoll sets, and to the program that
        // goes on with the connection.
        net::forget_error(stream.anchor);
        return Err(stream.endpoint.broken_by());
    }
    then
}

/// Gives the error of a send if nothing can be sent any more.
pub(super) fn unable(stream: &Stream) -> Option<Errno> {
    const BROKEN: u32 = flag::RESET | flag::BROKEN_PIPE;
    match stream.endpoint.state() {
        state if state.has(BROKEN) => reset_error(stream, Err(Errno(libc::EPIPE))).err(),
        state => state.has(flag::SEND_SHUT).then_some(Errno(libc::EPIPE)),
    }
}
