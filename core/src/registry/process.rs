//! What tells one process from another: its start time, pid namespace and executable, from /proc.

use std::ffi::CStr;

use super::kernel;

/// The parts of /proc/pid/stat that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// Field 22: clock ticks after boot.
    pub(super) start_time: u64,
    /// True for a zombie none of whose threads lives.
    pub(super) ended: bool,
}

impl Stat {
    /// Parses the one line of a stat file. Its second field is the program's name in parentheses. The name may hold any
    /// character, even a closing parenthesis.
    pub(super) fn parse(line: &[u8]) -> Option<Stat> {
        let name_end = line.iter().rposition(|&byte| byte == b')')?;
        let mut fields = std::str::from_utf8(&line[name_end + 1..]).ok()?.split_ascii_whitespace();
        let state = fields.next()?;
        // Field 3 is the state. Field 20 counts the threads, and field 22 is the start time.
        let threads: u64 = fields.nth(16)?.parse().ok()?;
        let start_time = fields.nth(1)?.parse().ok()?;
        Some(Stat { start_time, ended: matches!(state, "Z" | "X") && threads <= 1 })
    }
}

/// When this process started; 0 when /proc does not say.
pub(super) fn own_start_time() -> u64 {
    let mut line = [0; 1024];
    let Ok(file) =
        kernel::open(libc::AT_FDCWD, c"/proc/self/stat", libc::O_RDONLY | libc::O_NONBLOCK, 0)
    else {
        return 0;
    };
    let length = kernel::read(&file, &mut line).unwrap_or(0);
    Stat::parse(&line[..length]).map_or(0, |stat| stat.start_time)
}

/// Inode of this process's pid namespace; 0 when /proc does not say.
pub(super) fn own_pid_namespace() -> u64 {
    device_and_inode(c"/proc/self/ns/pid")[1]
}

/// Device and inode of this process's executable; zeros when /proc does not say.
pub(super) fn own_executable() -> [u64; 2] {
    device_and_inode(c"/proc/self/exe")
}

fn device_and_inode(path: &CStr) -> [u64; 2] {
    match kernel::status_of(path) {
        Ok(status) => [status.st_dev, status.st_ino],
        Err(_) => [0; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: &str = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 4242 20";

    #[test]
    fn the_name_may_hold_parentheses_and_spaces() {
        for name in ["(sh)", "(a b)", "(x) S 1 2)", "()"] {
            let stat = Stat::parse(format!("17 {name}{TAIL}").as_bytes());
            assert_eq!(stat, Some(Stat { start_time: 4242, ended: false }), "{name}");
        }
    }

    #[test]
    fn a_zombie_has_ended_only_without_other_threads() {
        let zombie = format!("17 (sh){}", TAIL.replace(" S ", " Z "));
        assert!(Stat::parse(zombie.as_bytes()).expect("valid").ended);
        let leader_ended_first = zombie.replace(" 16 1 18 ", " 16 2 18 ");
        assert!(!Stat::parse(leader_ended_first.as_bytes()).expect("valid").ended);
    }

    #[test]
    fn a_short_or_foreign_line_is_none() {
        for line in ["", "17", "17 (sh)", "17 (sh) S 1 2", "no parentheses at all"] {
            assert_eq!(Stat::parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn this_process_is_found() {
        assert_ne!(own_start_time(), 0);
        assert_ne!(own_pid_namespace(), 0);
        assert_ne!(own_executable()[1], 0);
    }
}
