//! Which process publishes in a file. The file's name has the number that the process has itself, and its PID namespace
//! where that is not the initial one. Two containers each have a process 1, and may have one folder in common.

use std::fmt;

use super::error::RegistryError;
use super::folder::Text;
use super::kernel;
use super::process;

/// Inode of the initial PID namespace, the same on each machine (the kernel's PROC_PID_INIT_INO).
const INITIAL: u64 = 0xefff_fffc;

/// A process, by numbers that mean the same to every reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Publisher {
    /// Its id in its PID namespace.
    pub(super) pid: u32,
    /// Inode of that namespace; never 0.
    pub(super) namespace: u64,
}

impl Publisher {
    /// This process.
    ///
    /// # Errors
    /// When /proc does not tell its namespace. A name without it could be another process's.
    pub(super) fn of_this_process() -> Result<Publisher, RegistryError> {
        match process::own_pid_namespace() {
            0 => Err(RegistryError::UnknownNamespace),
            namespace => Ok(Publisher { pid: kernel::process_id(), namespace }),
        }
    }

    /// The publisher that a file's name says. `None` for any other spelling of its numbers, such as with leading zeros.
    pub(super) fn parse(name: &[u8]) -> Option<Publisher> {
        let name = std::str::from_utf8(name).ok()?;
        let (pid, namespace) = match name.split_once('.') {
            None => (name, INITIAL),
            Some((pid, namespace)) => (pid, number(namespace)?),
        };
        // The initial one is not named.
        let is_canonical = !name.contains('.') || namespace != INITIAL;
        let pid = number(pid).filter(|&pid| is_canonical && pid <= i32::MAX as u64)?;
        Some(Publisher { pid: pid as u32, namespace })
    }

    /// Its file's name in the folder, with a dot in front while the file is being made.
    pub(super) fn file_name(self, finished: bool) -> Text<40> {
        let dot = if finished { "" } else { "." };
        let all_numbers_fit = Text::format(format_args!("{dot}{self}"));
        all_numbers_fit.unwrap_or(Text::EMPTY)
    }
}

impl fmt::Display for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            INITIAL => write!(f, "{}", self.pid),
            other => write!(f, "{}.{other}", self.pid),
        }
    }
}

/// A number above zero in its one spelling.
fn number(text: &str) -> Option<u64> {
    let is_canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_canonical)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_a_process_and_its_namespace() {
        let of = |pid, namespace| Publisher { pid, namespace };
        for (name, publisher) in [
            ("1", of(1, INITIAL)),
            ("4194304", of(4_194_304, INITIAL)),
            ("1.4026532218", of(1, 4_026_532_218)),
            ("2147483647.18446744073709551615", of(i32::MAX as u32, u64::MAX)),
        ] {
            assert_eq!(Publisher::parse(name.as_bytes()), Some(publisher));
            assert_eq!(publisher.to_string(), name);
            let file = publisher.file_name(false);
            assert_eq!(file.as_c_str().to_str(), Ok(format!(".{name}").as_str()));
        }
        assert_ne!(of(1, 2).to_string(), of(1, 3).to_string());
    }

    #[test]
    fn other_spellings_are_nobodys() {
        for name in [
            "",
            "0",
            "01",
            "+1",
            "-1",
            ".17",
            "17x",
            "2147483648",
            "99999999999",
            "17.",
            "17.0",
            "17.01",
            "17.4026531836",
            "17.1.1",
            "17.-1",
            "0.5",
            ".17.5",
            "17.18446744073709551616",
        ] {
            assert_eq!(Publisher::parse(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn this_process_is_known_as_proc_has_it() {
        let own = Publisher::of_this_process().expect("a /proc");
        let link = std::fs::read_link("/proc/self/ns/pid").expect("a namespace");
        assert_eq!(link.to_str(), Some(format!("pid:[{}]", own.namespace).as_str()));
        assert_eq!(own.pid, std::process::id());
    }
}
