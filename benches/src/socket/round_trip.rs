//! A message there and back.

use super::channel::Channel;
use super::endpoint::{self, Socket};
use super::warm_up;
use crate::error::Error;
use crate::options::Options;
use crate::report::{self, Subject};
use crate::stats;

pub(crate) fn client(options: &Options) -> Result<(), Error> {
    let channel = Channel::new(endpoint::connect(options)?, options.wait)?;
    warm_up::client(&channel, options.warm_up)?;
    measure(options, &channel)
}

/// As [`client`], over a connection that exists already and is warmed up.
pub(crate) fn measure(options: &Options, channel: &Channel) -> Result<(), Error> {
    let out = vec![0x5a; options.size];
    let mut into = vec![0; options.size];
    let summary = stats::measure(options, || {
        channel.send_all(&out)?;
        if !channel.receive_all(&mut into)? {
            return Err(Error::Peer("closed the connection".into()));
        }
        Ok(())
    })?;
    if into != out {
        return Err(Error::Peer("the echo differs from what was sent".into()));
    }
    report::latency(Subject::Socket, options, &summary);
    Ok(())
}

pub(crate) fn server(options: &Options, listener: &Socket) -> Result<(), Error> {
    let channel = Channel::new(endpoint::accept(listener)?, options.wait)?;
    warm_up::server(&channel)?;
    let mut buffer = vec![0; options.size];
    while channel.receive_all(&mut buffer)? {
        channel.send_all(&buffer)?;
    }
    Ok(())
}
