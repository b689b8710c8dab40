//! Messages in one direction, each by one send call. The receiver counts the bytes and confirms them.

use super::channel::BenchChannel;
use super::endpoint::{self, BenchSocket};
use super::warm_up;
use crate::error::BenchError;
use crate::figures::TouchedMemory;
use crate::options::Options;
use crate::report::{self, Subject};
use std::time::Instant;

pub(crate) fn client(options: &Options) -> Result<(), BenchError> {
    let channel = BenchChannel::new(endpoint::connect(options)?, options.wait)?;
    warm_up::client(&channel, options.warm_up)?;
    let data = vec![0x5a; options.size];
    let mut messages = 0u64;
    let per_look = (65536 / options.size).clamp(1, 256) as u64;
    let start = Instant::now();
    while options.count.map_or(start.elapsed() < options.length, |count| messages < count) {
        for _ in 0..per_look {
            channel.send_all(&data)?;
        }
        messages += per_look;
    }
    // Read while both ends still exist, and after the clock has stopped.
    let sending = start.elapsed();
    let both = [options.server_pid, std::process::id()].map(TouchedMemory::of);
    let segment_kib = both.into_iter().flatten().map(|memory| memory.segments).sum();
    let start = Instant::now();
    endpoint::finish(&channel.socket)?;
    let mut received = [0; 8];
    if !channel.receive_all(&mut received)? {
        return Err(BenchError::Peer("closed the connection without its count".into()));
    }
    let elapsed = sending + start.elapsed();
    let (sent, received) = (messages * options.size as u64, u64::from_le_bytes(received));
    if received != sent {
        return Err(BenchError::Peer(format!("received {received} of {sent} bytes")));
    }
    report::flow(Subject::Socket, options, messages, elapsed, Some(segment_kib));
    Ok(())
}

pub(crate) fn server(options: &Options, listener: &BenchSocket) -> Result<(), BenchError> {
    let channel = BenchChannel::new(endpoint::accept(listener)?, options.wait)?;
    warm_up::server(&channel)?;
    let mut buffer = vec![0; options.size];
    let mut received = 0u64;
    loop {
        match channel.receive_some(&mut buffer)? {
            0 => break,
            count => received += count as u64,
        }
    }
    channel.send_all(&received.to_le_bytes())
}
