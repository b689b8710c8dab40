//! The cost of a server that is mostly idle. Requests come at a given rate, one at a time, and go round many
//! connections.

use super::channel::BenchChannel;
use super::endpoint;
use super::warm_up;
use crate::error::BenchError;
use crate::figures::CpuUse;
use crate::options::{Options, WaitKind};
use crate::pace::pace;
use crate::report::Subject;

pub(crate) fn client(options: &Options) -> Result<(), BenchError> {
    let mut channels = Vec::new();
    for _ in 0..options.connections {
        let channel = BenchChannel::new(endpoint::connect(options)?, WaitKind::Blocking)?;
        // Each connection is accepted and answered once before the clock starts. More would not be paced.
        warm_up::client(&channel, 1)?;
        channels.push(channel);
    }
    let out = vec![0x5a; options.size];
    let mut into = vec![0; options.size];
    let before = (CpuUse::of(options.server_pid)?, CpuUse::of(std::process::id())?);
    let paced = pace(options, |number| {
        let channel = &channels[number as usize % channels.len()];
        channel.send_all(&out)?;
        if !channel.receive_all(&mut into)? {
            return Err(BenchError::Peer("closed the connection".into()));
        }
        Ok(())
    })?;
    let server = CpuUse::of(options.server_pid)?.since(&before.0);
    let client = CpuUse::of(std::process::id())?.since(&before.1);
    paced.report(Subject::Socket, options, server.milliseconds, client.milliseconds);
    Ok(())
}
