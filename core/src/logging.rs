//! The log: to a file, or to standard error only when the user asked for a log without naming one.

use crate::config::Config;
use crate::sys::{file, hidden, process, Fd};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

/// Writes each record to a descriptor of our own by one system call. It has no lock, which a fork child would
/// find taken by a thread that it has not.
struct Logger {
    filter: env_logger::Logger,
    to: Fd,
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &log::Record) {
        if self.filter.matches(record) {
            let level = record.level().as_str().to_lowercase();
            let line = format!("sanshim[{}] {level}: {}\n", process::pid(), record.args());
            let _ = file::write(self.to, line.as_ptr(), line.len());
        }
    }

    fn flush(&self) {}
}

/// Starts logging as configured. A log file that can not be opened is said on standard error.
pub fn initialize(config: &Config) {
    let Some(filter) = &config.log else { return };
    let sink = match &config.log_file {
        None => 2,
        Some(path) => {
            let opened = CString::new(path.as_os_str().as_bytes()).ok().and_then(|p| {
                let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
                // SAFETY: a terminated path; open is not hooked.
                let fd = unsafe { libc::open(p.as_ptr(), flags, 0o644) };
                (fd >= 0).then(|| hidden::keep(fd))
            });
            match opened {
                Some(fd) => fd,
                None => {
                    say(&format!(
                        "cannot open the log {}: {}: set SANSHIM_LOG_FILE to a file that can be \
                         written",
                        path.display(),
                        std::io::Error::last_os_error()
                    ));
                    return;
                }
            }
        }
    };
    let filter = env_logger::Builder::new().parse_filters(filter).build();
    let most = filter.filter();
    if log::set_boxed_logger(Box::new(Logger { filter, to: sink })).is_ok() {
        log::set_max_level(most);
    }
}

/// One line where the user sees it: only for a mistake in the configuration.
pub fn say(line: &str) {
    let line = format!("sanshim: {line}\n");
    let _ = file::write(2, line.as_ptr(), line.len());
}
