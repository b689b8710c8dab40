//! What can be wrong with the configuration. Each error is one line.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// So many characters of a bad value or line are shown at most.
const SHOWN: usize = 100;

/// A wrong value, in one line that names the place, the value and the remedy.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// An environment variable.
    #[error("{name}={}: {remedy}", shown(.value))]
    Variable {
        /// Its name.
        name: String,
        /// What it holds.
        value: String,
        /// What it may hold.
        remedy: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}; {remedy}", shown_path(.path))]
    File {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A log file that cannot be opened.
    #[error("cannot open the log {}: {source}; set SANSHIM_LOG_FILE to a file that can be written", shown_path(.path))]
    LogFile {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// A wrong line in a file.
    #[error("{}, line {line}: {}: {remedy}", shown_path(.path), shown(.text))]
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

/// The text on one line and not too long, whatever it holds.
fn shown(text: &str) -> String {
    let text = text.trim();
    let mut shown: String = text.chars().take(SHOWN).flat_map(printable).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

fn shown_path(path: &Path) -> String {
    shown(&path.to_string_lossy())
}

fn printable(character: char) -> Vec<char> {
    if character.is_control() {
        character.escape_default().collect()
    } else {
        vec![character]
    }
}
