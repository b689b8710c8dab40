//! Writing to standard output and standard error without ever panicking.

use std::io::{self, ErrorKind, Write};

/// Writes everything to standard output, and gives the exit status. It is no failure if the reader has gone (a closed
/// pipe). Any other failure is reported.
pub(crate) fn print(text: &str) -> i32 {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => 0,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => 0,
        Err(error) => {
            complain(&format!("cannot write the output: {error}"));
            1
        }
    }
}

/// True if standard output is a pipe that nobody reads any more.
pub(crate) fn is_abandoned() -> bool {
    let mut fds = [libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 }];
    // SAFETY: an array of one, alive during the call.
    let found = unsafe { libc::poll(fds.as_mut_ptr(), 1, 0) };
    found == 1 && fds[0].revents & libc::POLLERR != 0
}

/// Writes one line to standard error.
pub(crate) fn complain(line: &str) {
    // There is no better place to say that this failed.
    let _ = writeln!(io::stderr(), "sanctl: {}", printable(line));
}

/// The text with control characters as escapes. Names come from other processes, and a terminal would obey them.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\x1b[2Jb\n\u{9b}ü"), "a\\u{1b}[2Jb\\n\\u{9b}ü");
    }
}
