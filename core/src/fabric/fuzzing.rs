//! Feeds arbitrary bytes to the code that reads from another host, and from other processes' helpers.

use super::{frame, mailbox, request};

/// Each decoder takes it for its own.
pub(crate) fn fuzz(data: &[u8]) {
    frame::fuzz(data);
    request::fuzz(data);
    mailbox::fuzz(data);
}
