//! CPU time and memory of connections that were used and then do nothing.

use super::channel::BenchChannel;
use super::endpoint;
use super::warm_up;
use crate::error::BenchError;
use crate::figures::{CpuUse, TouchedMemory};
use crate::options::{Options, WaitKind};
use crate::report::{self, Subject};
use serde_json::json;
use std::time::Duration;

/// Time for the ends to calm down. A thread that spins after traffic has stopped by then.
const SETTLE: Duration = Duration::from_millis(500);

fn connect_and_use(options: &Options) -> Result<BenchChannel, BenchError> {
    let channel = BenchChannel::new(endpoint::connect(options)?, WaitKind::Blocking)?;
    warm_up::client(&channel, options.warm_up)?;
    Ok(channel)
}

pub(crate) fn client(options: &Options) -> Result<(), BenchError> {
    // The first connection is not counted, because it pays for what all share.
    let mut channels = vec![connect_and_use(options)?];
    let own = std::process::id();
    let before = (TouchedMemory::of(options.server_pid)?, TouchedMemory::of(own)?);
    for _ in 1..options.connections {
        channels.push(connect_and_use(options)?);
    }
    std::thread::sleep(SETTLE);
    let after = (TouchedMemory::of(options.server_pid)?, TouchedMemory::of(own)?);

    let start = (CpuUse::of(options.server_pid)?, CpuUse::of(own)?);
    std::thread::sleep(options.length);
    let server = CpuUse::of(options.server_pid)?.since(&start.0);
    let client = CpuUse::of(own)?.since(&start.1);

    let more = channels.len() - 1;
    let each = |kib: i64| if more == 0 { 0.0 } else { kib as f64 / more as f64 };
    report::other(
        Subject::Socket,
        options,
        json!({
            "connections": channels.len(),
            "seconds": options.length.as_secs_f64(),
            "server_cpu_ms": server.milliseconds,
            "server_wakeups": server.wakeups,
            "client_cpu_ms": client.milliseconds,
            "client_wakeups": client.wakeups,
            "segment_kib_each":
                each(after.0.segments - before.0.segments + after.1.segments - before.1.segments),
            "server_own_kib_each": each(after.0.own - before.0.own),
            "client_own_kib_each": each(after.1.own - before.1.own),
        }),
    );
    Ok(())
}
