//! The two ways every program is run.

use super::locate;
use std::ffi::OsStr;
use std::process::Command;

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As it is, on kernel TCP.
    Native,
    /// By `sanctl run`, which keeps its process number.
    Shim,
}

impl Mode {
    /// A command for an installed program. Of the shim's settings in this test's own environment
    /// only those of the log reach it.
    pub fn command(self, name: impl AsRef<OsStr>) -> Command {
        let name = name.as_ref();
        let path = match name.to_str() {
            Some(plain) if !plain.contains('/') => locate::program(plain),
            _ => name.into(),
        };
        let mut command = match self {
            Mode::Native => Command::new(path),
            Mode::Shim => {
                let mut command = Command::new(locate::sanctl());
                command.arg("run").arg("--").arg(path);
                command
            }
        };
        for variable in ["LD_PRELOAD", "SANSHIM", "SANSHIM_CONFIG"] {
            command.env_remove(variable);
        }
        // Most tests' connections never are so busy that they would go to the SAN of themselves.
        command.env("SANSHIM_MOVE_AFTER", "0");
        command
    }
}
