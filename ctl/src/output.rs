//! Writing to standard output and standard error without ever panicking.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
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
    let stdout = io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

/// The error's text without the number that std puts behind it.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Writes one line to standard error.
pub(crate) fn complain(line: &str) {
    // There is no better place to say that this failed.
    let _ = writeln!(io::stderr(), "sanctl: {}", printable(line));
}

/// True of what a terminal obeys, or does not show: control characters, and those that turn the direction of writing or
/// are invisible.
fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// JSON with what a terminal would obey as JSON's own escapes. It stays the same JSON.
pub(crate) fn printable_json(json: &str) -> String {
    let mut printable = String::with_capacity(json.len());
    for character in json.chars() {
        // Those of ASCII are the layout: in strings they are escaped already.
        if !character.is_ascii() && is_obeyed(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                printable += &format!("\\u{unit:04x}");
            }
        } else {
            printable.push(character);
        }
    }
    printable
}

/// The text with such characters as escapes. Names come from other processes, and a terminal would obey them.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if is_obeyed(character) {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::{printable, printable_json};

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\x1b[2Jb\n\u{9b}ü"), "a\\u{1b}[2Jb\\n\\u{9b}ü");
        assert_eq!(printable("x\u{202e}txt.exe\u{2066}"), "x\\u{202e}txt.exe\\u{2066}");
    }

    #[test]
    fn json_stays_the_same_and_is_not_obeyed() {
        let name = "a\x1b\u{9b}\u{202e}ü\u{e0001}";
        let json = printable_json(&serde_json::to_string(name).unwrap());
        assert!(json.chars().all(|c| !super::is_obeyed(c)), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
    }
}
