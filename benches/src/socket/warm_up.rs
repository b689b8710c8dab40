//! Traffic before the clock starts. How busy a connection was may decide whether it is on the SAN.

use super::channel::BenchChannel;
use super::endpoint;
use crate::error::BenchError;

const MESSAGE: usize = 64;
/// The first byte of a message that another one follows.
const MORE: u8 = 1;
const LAST: u8 = 0;

/// Receives a whole message, and looks for it all the time. An end that slept would be as slow as the machine is to
/// wake it, which differs from machine to machine.
fn receive(channel: &BenchChannel, into: &mut [u8]) -> Result<(), BenchError> {
    let mut done = 0;
    while done < into.len() {
        match endpoint::receive_now(&channel.socket, &mut into[done..])? {
            Some(0) => {
                return Err(BenchError::Peer("closed the connection while it was warmed up".into()))
            }
            Some(count) => done += count,
            None => std::thread::yield_now(),
        }
    }
    Ok(())
}

/// Makes so many small round trips.
pub(crate) fn client(channel: &BenchChannel, round_trips: u32) -> Result<(), BenchError> {
    let mut into = [0; MESSAGE];
    for left in (0..round_trips).rev() {
        let out = [if left == 0 { LAST } else { MORE }; MESSAGE];
        channel.send_all(&out)?;
        receive(channel, &mut into)?;
    }
    Ok(())
}

/// The other end, which goes on until the client's last message.
pub(crate) fn server(channel: &BenchChannel) -> Result<(), BenchError> {
    let mut message = [MORE; MESSAGE];
    while message[0] != LAST {
        receive(channel, &mut message)?;
        channel.send_all(&message)?;
    }
    Ok(())
}
