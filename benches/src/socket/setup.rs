//! Connections: connect, a request and its echo, close. One after the other.

use super::channel::Channel;
use super::endpoint::{self, Socket};
use crate::error::Error;
use crate::options::Options;
use crate::report::{self, Subject};
use crate::stats;

/// Connections in a run unless said otherwise; far below the number of ephemeral ports, since
/// each leaves one in TIME-WAIT towards this run's server port.
const CONNECTIONS: u64 = 3000;

pub(crate) fn client(options: &Options) -> Result<(), Error> {
    let counted = Options { count: Some(options.count.unwrap_or(CONNECTIONS)), ..options.clone() };
    let request = vec![0x5a; options.size];
    let mut reply = vec![0; options.size];
    let summary = stats::measure(&counted, || {
        let channel = Channel::new(endpoint::connect(options)?, options.wait)?;
        channel.send_all(&request)?;
        if !channel.receive_all(&mut reply)? {
            return Err(Error::Peer("closed the connection without a reply".into()));
        }
        Ok(())
    })?;
    report::latency(Subject::Socket, options, &summary);
    Ok(())
}

/// Serves until it is ended by the process that started it.
pub(crate) fn server(options: &Options, listener: &Socket) -> Result<(), Error> {
    let mut buffer = vec![0; options.size];
    loop {
        let channel = Channel::new(endpoint::accept(listener)?, options.wait)?;
        while channel.receive_all(&mut buffer)? {
            channel.send_all(&buffer)?;
        }
    }
}
