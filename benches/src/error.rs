//! The errors of a measurement, and the exit status each of them gives.

use std::{fmt, io};

/// Why a run gave no figure.
#[derive(Debug)]
pub(crate) enum BenchError {
    /// The command line cannot be carried out. The text says what to write instead.
    Usage(String),
    /// The machine cannot do this measurement, because it has only one CPU, or a call is not permitted.
    Unavailable(String),
    /// A system call failed.
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The other end broke the rules of the measurement: bytes are missing, or it ended early.
    Peer(String),
}

impl BenchError {
    /// 64 for usage, 75 for not available here, 1 for everything else.
    pub(crate) fn exit_status(&self) -> i32 {
        match self {
            BenchError::Usage(_) => 64,
            BenchError::Unavailable(_) => 75,
            BenchError::System { .. } | BenchError::Peer(_) => 1,
        }
    }

    /// The error of the system call that just failed.
    pub(crate) fn last(call: &'static str) -> BenchError {
        BenchError::System { call, source: io::Error::last_os_error() }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Usage(text) => write!(f, "{text}; see sanbench --help"),
            BenchError::Unavailable(text) => write!(f, "not available on this machine: {text}"),
            BenchError::System { call, source } => write!(f, "{call}: {source}"),
            BenchError::Peer(text) => write!(f, "the other end: {text}"),
        }
    }
}

impl std::error::Error for BenchError {}
