//! What the machine allows: two processes over a shared mapping, with nothing in between.

mod memory;
mod one_copy;
mod paced;
mod ring;
mod round_trip;
mod setup;

pub(crate) use memory::SharedMapping;

use crate::error::BenchError;
use crate::options::{Case, Options};

/// Runs one floor measurement and prints its line.
pub(crate) fn run(options: &Options) -> Result<(), BenchError> {
    match options.case {
        Case::RoundTrip => round_trip::run(options),
        Case::OneWay | Case::Stream => ring::run(options),
        Case::OneCopy => one_copy::run(options),
        Case::Setup => setup::run(options),
        Case::Paced => paced::run(options),
        Case::Idle | Case::Shared | Case::Turns => Err(BenchError::Usage(format!(
            "{} has no floor: use sanbench socket {0}",
            options.case.name()
        ))),
    }
}
