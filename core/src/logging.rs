//! The log: to a file, or to standard error only when the user asked for a log without naming one.

use crate::config::{Config, ConfigError};
use crate::sys::{file, hidden, process, Fd};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Writes each record to a descriptor of our own by one system call. It has no lock, which a fork child would
/// find taken by a thread that it has not.
struct Logger {
    filter: env_logger::Logger,
    to: Fd,
    /// It is a file of ours.
    limited: bool,
}

/// This process may not ask for its limits any more.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// Before this process forbids itself system calls: from now on none but write is made for the log, and none at all
/// where a limit would have to be asked for.
pub fn before_confinement() {
    if file::is_size_limited() {
        log::set_max_level(log::LevelFilter::Off);
    }
    CONFINED.store(true, Relaxed);
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &log::Record) {
        if self.filter.matches(record) {
            let level = record.level().as_str().to_lowercase();
            let line = format!("sanshim[{}] {level}: {}\n", process::pid(), record.args());
            if self.limited && !CONFINED.load(Relaxed) && !file::may_append(self.to, line.len()) {
                log::set_max_level(log::LevelFilter::Off);
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
/// The log file cannot be opened.
pub fn initialize(config: &Config) -> Result<(), ConfigError> {
    let Some(filter) = &config.log else { return Ok(()) };
    let limited = config.log_file.is_some();
    let sink = match &config.log_file {
        None => 2,
        Some(path) => {
            open(path).map_err(|source| ConfigError::LogFile { path: path.clone(), source })?
        }
    };
    let filter = env_logger::Builder::new().parse_filters(filter).build();
    let most = filter.filter();
    if log::set_boxed_logger(Box::new(Logger { filter, to: sink, limited })).is_ok() {
        log::set_max_level(most);
    }
    Ok(())
}

fn open(path: &Path) -> std::io::Result<Fd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: a terminated path; open is not hooked.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o644) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(hidden::keep(fd))
}

/// One line where the user sees it: only for a mistake in the configuration.
pub fn say(line: &str) {
    let line = format!("sanshim: {line}\n");
    let _ = file::write(2, line.as_ptr(), line.len());
}
