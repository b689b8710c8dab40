//! Requests at a given rate, one at a time, and what they take.

use crate::error::BenchError;
use crate::options::Options;
use crate::report::{self, Subject};
use crate::stats::percentile;
use serde_json::json;
use std::time::{Duration, Instant};

/// What the requests took.
pub(crate) struct PacedResult {
    /// Of each, in nanoseconds.
    times: Vec<u64>,
    seconds: f64,
}

/// Makes `exchange` of each number from 0 when it is due. A request that is late does not delay those after it.
pub(crate) fn pace(
    options: &Options,
    mut exchange: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<PacedResult, BenchError> {
    let wanted = options
        .count
        .unwrap_or((options.length.as_secs_f64() * f64::from(options.rate)) as u64)
        .max(1);
    let mut times = Vec::with_capacity(wanted as usize);
    let start = Instant::now();
    for number in 0..wanted {
        let due = start + Duration::from_secs_f64(number as f64 / f64::from(options.rate));
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let sent = Instant::now();
        exchange(number)?;
        times.push(sent.elapsed().as_nanos() as u64);
    }
    Ok(PacedResult { times, seconds: start.elapsed().as_secs_f64() })
}

impl PacedResult {
    /// Prints the line of the run, with the processor time (ms) of both ends.
    pub(crate) fn report(
        mut self,
        subject: Subject,
        options: &Options,
        server_ms: f64,
        client_ms: f64,
    ) {
        let count = self.times.len();
        report::other(
            subject,
            options,
            json!({
                "connections": options.connections,
                "rate": options.rate,
                "count": count,
                "rate_per_s": count as f64 / self.seconds,
                "p50_ns": percentile(&mut self.times, 0.5),
                "p99_ns": percentile(&mut self.times, 0.99),
                "seconds": self.seconds,
                "server_cpu_ms": server_ms,
                "client_cpu_ms": client_ms,
                "cpu_ms": server_ms + client_ms,
            }),
        );
    }
}
