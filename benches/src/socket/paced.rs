//! What a server costs that is mostly idle. Requests come at a given rate, one at a time, and go round many
//! connections.

use super::channel::Channel;
use super::endpoint;
use super::figures::CpuUse;
use super::warm_up;
use crate::error::Error;
use crate::options::{Options, Wait};
use crate::report::{self, Subject};
use crate::stats::percentile;
use serde_json::json;
use std::time::{Duration, Instant};

pub(crate) fn client(options: &Options) -> Result<(), Error> {
    let mut channels = Vec::new();
    for _ in 0..options.connections {
        let channel = Channel::new(endpoint::connect(options)?, Wait::Blocking)?;
        // Each connection is accepted and answered once before the clock starts. More would not be paced.
        warm_up::client(&channel, 1)?;
        channels.push(channel);
    }
    let out = vec![0x5a; options.size];
    let mut into = vec![0; options.size];
    let wanted = options
        .count
        .unwrap_or((options.length.as_secs_f64() * f64::from(options.rate)) as u64)
        .max(1);
    let mut times = Vec::with_capacity(wanted as usize);
    let before = (CpuUse::of(options.server_pid)?, CpuUse::of(std::process::id())?);
    let start = Instant::now();
    for (number, channel) in (0..wanted).zip(channels.iter().cycle()) {
        let due = start + Duration::from_secs_f64(number as f64 / f64::from(options.rate));
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let sent = Instant::now();
        channel.send_all(&out)?;
        if !channel.receive_all(&mut into)? {
            return Err(Error::Peer("closed the connection".into()));
        }
        times.push(sent.elapsed().as_nanos() as u64);
    }
    let seconds = start.elapsed().as_secs_f64();
    let server = CpuUse::of(options.server_pid)?.since(&before.0);
    let client = CpuUse::of(std::process::id())?.since(&before.1);
    report::other(
        Subject::Socket,
        options,
        json!({
            "connections": options.connections,
            "rate": options.rate,
            "count": wanted,
            "rate_per_s": wanted as f64 / seconds,
            "p50_ns": percentile(&mut times, 0.5),
            "p99_ns": percentile(&mut times, 0.99),
            "seconds": seconds,
            "server_cpu_ms": server.milliseconds,
            "client_cpu_ms": client.milliseconds,
            "cpu_ms": server.milliseconds + client.milliseconds,
        }),
    );
    Ok(())
}
