//! The log. It goes to a file, or to standard error if the user asked for a log without naming a file.

mod sink;

use crate::config::{Config, ConfigError};
use crate::sys::{file, process, Fd};
use sink::{Sink, Unusable};
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// Writes each record by one system call. It has no lock, because in a fork child that could be held by a thread that does
/// not exist there.
struct Logger {
    filter: env_logger::Logger,
    to: &'static Sink,
}

/// Where the log goes, if there is one.
static SINK: OnceLock<Sink> = OnceLock::new();

/// Nothing is logged from now on, because this process may be forbidden what a line takes.
pub fn stop() {
    log::set_max_level(log::LevelFilter::Off);
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &log::Record) {
        if self.filter.matches(record) {
            let level = record.level().as_str().to_lowercase();
            let line = format!("sanshim[{}] {level}: {}\n", process::pid(), record.args());
            if !self.to.write(&line) {
                stop();
            }
        }
    }

    fn flush(&self) {}
}

/// Starts logging as configured.
///
/// # Errors
/// When the log file cannot be opened.
pub fn initialize(config: &Config) -> Result<(), ConfigError> {
    let Some(filter) = &config.log else { return Ok(()) };
    let sink = match &config.log_file {
        None => match Sink::standard_error() {
            Ok(sink) => sink,
            Err(why) => {
                if matches!(why, Unusable::ForeignTerminal) {
                    say("this user may not open the terminal that standard error is: set SANSHIM_LOG_FILE to have a log");
                }
                return Ok(());
            }
        },
        Some(path) => {
            let failed = |source| ConfigError::LogFile { path: path.clone(), source };
            let fd = open(path, libc::O_CREAT).map_err(failed)?;
            Sink::named(fd).map_err(|e| failed(std::io::Error::from_raw_os_error(e.0)))?
        }
    };
    let filter = env_logger::Builder::new().parse_filters(filter).build();
    let most = filter.filter();
    let to = SINK.get_or_init(|| sink);
    if log::set_boxed_logger(Box::new(Logger { filter, to })).is_ok() {
        log::set_max_level(most);
    }
    Ok(())
}

/// Before the program closes standard error, or puts another file there.
pub fn standard_error_goes() {
    if let Some(sink) = SINK.get() {
        sink.standard_error_goes();
    }
}

/// Checks whether [`initialize`] could open the log file for this user, without making one.
///
/// # Errors
/// When it could not.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    let (Some(_), Some(path)) = (&config.log, &config.log_file) else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let tried = match open(path, 0) {
        Ok(fd) => {
            file::close(fd);
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::NotFound => may_write(folder.unwrap_or(Path::new("."))),
        Err(e) => Err(e),
    };
    tried.map_err(|source| ConfigError::LogFile { path: path.clone(), source })
}

fn may_write(folder: &Path) -> std::io::Result<()> {
    let folder = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: a terminated path.
    match unsafe { libc::access(folder.as_ptr(), libc::W_OK | libc::X_OK) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn open(path: &Path, flags: i32) -> std::io::Result<Fd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // Neither this process nor a named pipe's reader waits.
    let flags = flags
        | libc::O_WRONLY
        | libc::O_APPEND
        | libc::O_CLOEXEC
        | libc::O_NONBLOCK
        | libc::O_NOCTTY;
    // SAFETY: a terminated path; open is not hooked.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o644) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(fd)
}

/// Writes one line to standard error, where the user sees it. Only at the start, for a mistake in the configuration.
pub fn say(line: &str) {
    if let Some(sink) = Sink::standard_error_itself() {
        sink.write(&format!("sanshim: {line}\n"));
    }
}
