//! What can be wrong with the configuration. Each error is one line.

use std::path::PathBuf;
use std::{fmt, io};

/// So many characters of a bad value or line are shown at most.
const SHOWN: usize = 100;

/// A wrong value, in one line that names the place, the value and the remedy.
#[derive(Debug)]
pub enum ConfigError {
    /// An environment variable.
    Variable {
        /// Its name.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        remedy: String,
    },
    /// A file that cannot be read.
    File {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A log file that cannot be opened.
    LogFile {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// A wrong line in a file.
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What the line says.
        text: String,
        /// What is wrong with it and what may stand there.
        remedy: String,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Variable { name, value, remedy } => {
                write!(f, "{name}={}: {remedy}", shown(value))
            }
            ConfigError::File { path, source, remedy } => {
                write!(f, "cannot read {}: {source}; {remedy}", shown(&path.to_string_lossy()))
            }
            ConfigError::LogFile { path, source } => {
                let path = path.to_string_lossy();
                write!(f, "cannot open the log {}: {source}; set SANSHIM_LOG_FILE to a file that can be written", shown(&path))
            }
            ConfigError::Line { path, line, text, remedy } => {
                let path = path.to_string_lossy();
                write!(f, "{}, line {line}: {}: {remedy}", shown(&path), shown(text))
            }
        }
    }
}

/// The text on one line and not too long, whatever it holds.
fn shown(text: &str) -> String {
    let text = text.trim();
    let mut shown: String = text.chars().take(SHOWN).flat_map(printable).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

fn printable(character: char) -> Vec<char> {
    if character.is_control() {
        character.escape_default().collect()
    } else {
        vec![character]
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ConfigError::File { source, .. } | ConfigError::LogFile { source, .. } => Some(source),
            _ => None,
        }
    }
}
