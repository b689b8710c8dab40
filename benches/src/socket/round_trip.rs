//! A message there and back.

use super::channel::BenchChannel;
use super::endpoint::{self, BenchSocket};
use super::warm_up;
use crate::error::BenchError;
use crate::options::Options;
use crate::report::{self, Subject};
use crate::stats;

pub(crate) fn client(options: &Options) -> Result<(), BenchError> {
    let channel = BenchChannel::new(endpoint::connect(options)?, options.wait)?;
    warm_up::client(&channel, options.warm_up)?;
    measure(options, &channel)
}

/// As [`client`], over a connection that exists already and is warmed up.
pub(crate) fn measure(options: &Options, channel: &BenchChannel) -> Result<(), BenchError> {
    let out = vec![0x5a; options.size];
    let mut into = vec![0; options.size];
    let summary = stats::measure(options, || {
        channel.send_all(&out)?;
        if !channel.receive_all(&mut into)? {
            return Err(BenchError::Peer("closed the connection".into()));
        }
        Ok(())
    })?;
    if into != out {
        return Err(BenchError::Peer("the echo differs from what was sent".into()));
    }
    report::latency(Subject::Socket, options, &summary);
    Ok(())
}

pub(crate) fn server(options: &Options, listener: &BenchSocket) -> Result<(), BenchError> {
    let channel = BenchChannel::new(endpoint::accept(listener)?, options.wait)?;
    warm_up::server(&channel)?;
    let mut buffer = vec![0; options.size];
    while channel.receive_all(&mut buffer)? {
        channel.send_all(&buffer)?;
    }
    Ok(())
}
