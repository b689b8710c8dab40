//! The log: to a file, or to standard error only when the user asked for a log without naming one.

use crate::config::Config;
use crate::sys::{file, hidden, Fd};
use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Writes to a descriptor of our own by raw system calls.
struct Sink(Fd);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        file::write(self.0, bytes.as_ptr(), bytes.len())
            .map_err(|e| std::io::Error::from_raw_os_error(e.0))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
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
    let _ = env_logger::Builder::new()
        .parse_filters(filter)
        .format(|out, record| {
            writeln!(
                out,
                "sanshim[{}] {}: {}",
                crate::sys::process::pid(),
                record.level().as_str().to_lowercase(),
                record.args()
            )
        })
        .target(env_logger::Target::Pipe(Box::new(Sink(sink))))
        .try_init();
}

/// One line where the user sees it: only for a mistake in the configuration.
pub fn say(line: &str) {
    let line = format!("sanshim: {line}\n");
    let _ = file::write(2, line.as_ptr(), line.len());
}
