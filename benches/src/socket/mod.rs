//! The same measurements over a socket. Whether the bytes go over TCP or the SAN is decided outside. Nothing here may
//! know it.

mod channel;
mod echo;
mod endpoint;
mod flow;
mod idle;
mod paced;
mod round_trip;
mod setup;
mod turns;
mod warm_up;

use crate::error::BenchError;
use crate::options::{Case, Options};

/// The end that measures.
pub(crate) fn client(options: &Options) -> Result<(), BenchError> {
    match options.case {
        Case::RoundTrip => round_trip::client(options),
        Case::OneWay | Case::Stream => flow::client(options),
        Case::Setup => setup::client(options),
        Case::Idle => idle::client(options),
        Case::Paced => paced::client(options),
        Case::Shared => turns::shared_client(options),
        Case::Turns => turns::client(options),
        Case::OneCopy => Err(BenchError::Usage("one-copy is a floor case".into())),
    }
}

/// The other end. It listens, says on standard output where, and serves one measurement.
pub(crate) fn server(options: &Options) -> Result<(), BenchError> {
    let listener = endpoint::listen(options)?;
    match options.case {
        Case::RoundTrip | Case::Shared => round_trip::server(options, &listener),
        Case::Turns => turns::server(options, &listener),
        Case::OneWay | Case::Stream => flow::server(options, &listener),
        // For one connection at a time no event loop is necessary.
        Case::Setup if options.connections == 1 => setup::server(options, &listener),
        Case::Setup | Case::Idle | Case::Paced => echo::server(options, &listener),
        Case::OneCopy => Err(BenchError::Usage("one-copy is a floor case".into())),
    }
}
