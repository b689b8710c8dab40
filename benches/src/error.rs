//! The errors of a measurement, and the exit status each of them gives.

use std::{fmt, io};

/// Why a run gave no figure.
#[derive(Debug)]
pub(crate) enum Error {
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

impl Error {
    /// 64 for usage, 75 for not available here, 1 for everything else.
    pub(crate) fn exit_status(&self) -> i32 {
        match self {
            Error::Usage(_) => 64,
            Error::Unavailable(_) => 75,
            Error::System { .. } | Error::Peer(_) => 1,
        }
    }

    /// The error of the system call that just failed.
    pub(crate) fn last(call: &'static str) -> Error {
        Error::System { call, source: io::Error::last_os_error() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(text) => write!(f, "{text}; see sanbench --help"),
            Error::Unavailable(text) => write!(f, "not available on this machine: {text}"),
            Error::System { call, source } => write!(f, "{call}: {source}"),
            Error::Peer(text) => write!(f, "the other end: {text}"),
        }
    }
}

impl std::error::Error for Error {}
