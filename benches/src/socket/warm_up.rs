//! Traffic before the clock starts: what carries a connection may depend on how busy it was.

use super::channel::Channel;
use crate::error::Error;

const MESSAGE: usize = 64;
/// First byte of a message that another follows.
const MORE: u8 = 1;
const LAST: u8 = 0;

/// Small round trips, so many.
pub(crate) fn client(channel: &Channel, round_trips: u32) -> Result<(), Error> {
    let mut into = [0; MESSAGE];
    for left in (0..round_trips).rev() {
        let out = [if left == 0 { LAST } else { MORE }; MESSAGE];
        channel.send_all(&out)?;
        if !channel.receive_all(&mut into)? {
            return Err(Error::Peer("closed the connection while it was warmed up".into()));
        }
    }
    Ok(())
}

/// The other end, until the client's last.
pub(crate) fn server(channel: &Channel) -> Result<(), Error> {
    let mut message = [MORE; MESSAGE];
    while message[0] != LAST {
        if !channel.receive_all(&mut message)? {
            return Err(Error::Peer("closed the connection while it was warmed up".into()));
        }
        channel.send_all(&message)?;
    }
    Ok(())
}
