//! Where lines go. Standard error is the program's: it may be closed, another file, or a connection by the time a line
//! comes, a pipe that is full or that nobody reads, or a terminal that has stopped. The log writes a line only where it
//! can do so without waiting, without a signal, and into the file that was there at the start.

use crate::sys::{file, hidden, process, quiet_write, Errno, Fd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Device and inode.
type Identity = (u64, u64);

/// A place for lines.
pub(super) struct Sink {
    /// The number that is written to.
    fd: AtomicI32,
    file: Identity,
    way: Way,
}

/// How it is written to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Our own descriptor of a file that the user named. It does not make writers wait.
    Named,
    /// Our own descriptor of the terminal that standard error is. A descriptor of the program's may wait for a terminal whose
    /// buffer is full.
    Terminal,
    /// Standard error, a file.
    File,
    /// Standard error, a pipe or a device.
    Stream,
    /// Standard error, a socket to the program that keeps the log, as systemd has one.
    Socket,
}

/// Why nothing can be written to standard error.
pub(super) enum Unusable {
    /// It is closed, or a connection of the program's.
    NotForWords,
    /// It is a terminal that this user may not open.
    ForeignTerminal,
}

impl Sink {
    /// A file of that descriptor, which becomes ours.
    pub(super) fn named(fd: Fd) -> Result<Self, Errno> {
        let identity = file::identity(fd)?;
        Ok(Self { fd: AtomicI32::new(hidden::keep(fd)), file: identity, way: Way::Named })
    }

    /// Standard error, for as long as it is what it is now. At the start, while no other thread wants numbers of descriptors.
    pub(super) fn standard_error() -> Result<Self, Unusable> {
        let mut sink = Self::standard_error_itself().ok_or(Unusable::NotForWords)?;
        if sink.way == Way::Stream && file::is_terminal(libc::STDERR_FILENO) {
            const FLAGS: i32 = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
            let own =
                file::open(c"/proc/self/fd/2", FLAGS, 0).map_err(|_| Unusable::ForeignTerminal)?;
            sink.fd = AtomicI32::new(hidden::keep(own));
            sink.way = Way::Terminal;
        }
        Ok(sink)
    }

    /// As [`standard_error`](Self::standard_error), for a word at the start: a terminal is written to as any device.
    pub(super) fn standard_error_itself() -> Option<Self> {
        let fd = libc::STDERR_FILENO;
        let status = file::stat(fd).ok()?;
        let file = (status.st_dev, status.st_ino);
        let way = match status.st_mode & libc::S_IFMT {
            libc::S_IFREG => Way::File,
            // Where a super server starts the program, standard input is the same connection.
            libc::S_IFSOCK => (file::is_unix_socket(fd)
                && file::identity(libc::STDIN_FILENO) != Ok(file))
            .then_some(Way::Socket)?,
            _ => Way::Stream,
        };
        Some(Self { fd: AtomicI32::new(fd), file, way })
    }

    /// Writes a line, if that is possible now. False if the file must not become so large (RLIMIT_FSIZE).
    pub(super) fn write(&self, line: &str) -> bool {
        let fd = self.fd.load(Relaxed);
        let Some(status) = self.found(fd) else { return true };
        let bytes = line.as_bytes();
        let limit = match status.st_mode & libc::S_IFMT {
            libc::S_IFREG => file::size_limit(),
            _ => u64::MAX,
        };
        if (status.st_size as u64).saturating_add(bytes.len() as u64) > limit {
            return false;
        }
        let whole = &bytes[..bytes.len().min(quiet_write::WHOLE)];
        let _ = match self.way {
            // A write there waits for nobody, and raises no signal.
            Way::Named | Way::File
                if status.st_mode & libc::S_IFMT == libc::S_IFREG && limit == u64::MAX =>
            {
                file::write(fd, bytes.as_ptr(), bytes.len())
            }
            Way::Named | Way::Terminal | Way::File => quiet_write::to_file(fd, bytes),
            Way::Stream => quiet_write::to_stream(fd, whole),
            Way::Socket => quiet_write::to_socket(fd, bytes),
        };
        true
    }

    /// The file at that number, if it still is the file of the start, as far as the library can tell.
    fn found(&self, fd: Fd) -> Option<libc::stat> {
        let found =
            |fd| file::stat(fd).ok().filter(|status| (status.st_dev, status.st_ino) == self.file);
        match self.way {
            Way::Named => found(hidden::kept(fd)),
            Way::Terminal => found(libc::STDERR_FILENO).and_then(|_| found(hidden::kept(fd))),
            Way::File | Way::Stream | Way::Socket => found(fd),
        }
    }

    /// The program closes standard error, or puts another file there. It may do that so that the terminal sees it go, or in a
    /// vfork child, whose memory is its parent's.
    pub(super) fn standard_error_goes(&self) {
        if self.way != Way::Terminal || process::is_borrowed() {
            return;
        }
        let own = self.fd.swap(-1, Relaxed);
        if own >= 0 {
            hidden::close(own);
        }
    }
}
