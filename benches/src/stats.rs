//! Timing of a repeated exchange, and the figures of a set of samples.

use crate::error::BenchError;
use crate::options::Options;
use std::time::{Duration, Instant};

/// Exchanges of a timed block. They are so many that to read the clock (tens of nanoseconds) hardly matters.
const BLOCK: u32 = 16;
/// The most single samples that are kept. Their memory is touched beforehand, so that no page fault is timed.
const MOST_SAMPLES: usize = 1 << 19;

/// Figures of one run. Times are nanoseconds for one exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// Exchanges that were timed.
    pub(crate) count: u64,
    /// Whole time by number of exchanges, without single clock readings.
    pub(crate) mean: f64,
    /// Median over blocks of exchanges. It is free of the clock's own cost, so ratios are made of it.
    pub(crate) typical: f64,
    /// Median of single exchanges. Each has one reading of the clock in it.
    pub(crate) p50: f64,
    /// 99th percentile of single exchanges.
    pub(crate) p99: f64,
}

/// The value below which `fraction` of the samples lie (nearest rank). 0 for no samples.
pub(crate) fn percentile(samples: &mut [u64], fraction: f64) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    let rank = (samples.len() as f64 * fraction).ceil() as usize;
    let index = rank.clamp(1, samples.len()) - 1;
    *samples.select_nth_unstable(index).1 as f64
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// When to stop: after a number of exchanges, or when a length of time is over.
enum Limit {
    Count(u64),
    Until(Instant),
}

impl Limit {
    fn reached(&self, done: u64, now: Instant) -> bool {
        match self {
            Limit::Count(count) => done >= *count,
            Limit::Until(end) => now >= *end,
        }
    }
}

/// Times `exchange`. A tenth of the time is for warming up, half of it for blocks, and the rest for single exchanges.
///
/// With `--count` there is no warm-up. Half of the exchanges are in blocks, the other half are single.
pub(crate) fn measure(
    options: &Options,
    mut exchange: impl FnMut() -> Result<(), BenchError>,
) -> Result<Summary, BenchError> {
    let start = Instant::now();
    let limit = |fraction: f64| match options.count {
        Some(count) => Limit::Count((count as f64 * (fraction - 0.1).max(0.0) / 0.9) as u64),
        None => Limit::Until(start + options.length.mul_f64(fraction)),
    };

    let warm_up = limit(0.1);
    let mut warmed = 0;
    while !warm_up.reached(warmed, Instant::now()) {
        exchange()?;
        warmed += 1;
    }

    let mut blocks = touched(MOST_SAMPLES / BLOCK as usize);
    let in_blocks = limit(0.55);
    let first = Instant::now();
    let mut last = first;
    let mut count = 0;
    while count == 0 || !in_blocks.reached(count, last) {
        for _ in 0..BLOCK {
            exchange()?;
        }
        let now = Instant::now();
        count += u64::from(BLOCK);
        if blocks.len() < blocks.capacity() {
            blocks.push(nanoseconds(now - last));
        }
        last = now;
    }
    let mean = nanoseconds(last - first) as f64 / count as f64;

    let mut singles = touched(MOST_SAMPLES);
    let one_by_one = limit(1.0);
    last = Instant::now();
    while singles.is_empty() || !one_by_one.reached(count, last) {
        exchange()?;
        let now = Instant::now();
        count += 1;
        if singles.len() < singles.capacity() {
            singles.push(nanoseconds(now - last));
        }
        last = now;
    }
    Ok(Summary {
        count,
        mean,
        typical: percentile(&mut blocks, 0.5) / f64::from(BLOCK),
        p50: percentile(&mut singles, 0.5),
        p99: percentile(&mut singles, 0.99),
    })
}

/// An empty vector whose memory is already there.
fn touched(capacity: usize) -> Vec<u64> {
    let mut vector = vec![1; capacity];
    vector.clear();
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut samples: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut samples, 0.5), 50.0);
        assert_eq!(percentile(&mut samples, 0.99), 99.0);
        assert_eq!(percentile(&mut samples, 1.0), 100.0);
        assert_eq!(percentile(&mut [7], 0.5), 7.0);
        assert_eq!(percentile(&mut [], 0.5), 0.0);
    }

    #[test]
    fn a_count_is_kept_to() {
        let args = "round-trip --count 1000".split(' ').map(String::from);
        let options = Options::parse(args).unwrap();
        let mut calls = 0;
        let summary = measure(&options, || {
            calls += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(summary.count, calls);
        assert_eq!(calls, 1000);
    }
}
