//! Runs real programs natively and under the shim: finding them, starting and ending them, and
//! asking `sanctl` where their connections are. Knows no single program.

pub mod locate;
pub mod mode;
pub mod port;
pub mod process;
pub mod status;

pub use mode::Mode;
pub use process::{Running, Sandbox};

use std::time::{Duration, Instant};

/// A wait that takes longer than this has hung. Far above any real duration: nothing is measured.
pub const HANG: Duration = Duration::from_secs(60);

/// Calls `attempt` until it gives something, and panics with what `describe` says when it never does.
pub fn eventually<T>(attempt: impl FnMut() -> Option<T>, describe: impl Fn() -> String) -> T {
    eventually_within(HANG, attempt, describe)
}

/// The same with another limit.
pub fn eventually_within<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> Option<T>,
    describe: impl Fn() -> String,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(start.elapsed() < limit, "gave up after {limit:?}: {}", describe());
        std::thread::sleep(Duration::from_millis(5));
    }
}
