//! The log. It goes to a file, or to standard error if the user asked for a log without naming a file.

use crate::config::{Config, ConfigError};
use crate::sys::{file, hidden, process, Fd};
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Writes each record to a descriptor of our own by one system call. It has no lock, because in a fork child that could
/// be held by a thread that does not exist there.
struct Logger {
    filter: env_logger::Logger,
    to: Fd,
    /// True for a log file of ours, which must not pass RLIMIT_FSIZE.
    limited: bool,
}

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
            if self.limited && !file::may_append(self.to, line.len()) {
                stop();
                return;
            }
            let _ = file::write(self.to, line.as_ptr(), line.len());
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
    let limited = config.log_file.is_some();
    let sink = match &config.log_file {
        None => 2,
        Some(path) => {
            let failed = |source| ConfigError::LogFile { path: path.clone(), source };
            hidden::keep(open(path, libc::O_CREAT).map_err(failed)?)
        }
    };
    let filter = env_logger::Builder::new().parse_filters(filter).build();
    let most = filter.filter();
    if log::set_boxed_logger(Box::new(Logger { filter, to: sink, limited })).is_ok() {
        log::set_max_level(most);
    }
    Ok(())
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
    let flags = flags | libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC;
    // SAFETY: a terminated path; open is not hooked.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o644) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(fd)
}

/// Writes one line to standard error, where the user sees it. Only for a mistake in the configuration.
pub fn say(line: &str) {
    let line = format!("sanshim: {line}\n");
    let _ = file::write(2, line.as_ptr(), line.len());
}
