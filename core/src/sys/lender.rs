//! A process whose memory this one may use, because it lends that memory, without being used to reach what the lender
//! could not reach itself.

use super::{call, file, process, Fd};

/// CAP_SYS_PTRACE, by which the kernel lets a process access any other.
const ACCESS_TO_ALL: u64 = 1 << 19;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lender {
    /// Its id.
    pub(crate) pid: u32,
    /// When it began (clock ticks since the start of the system): what has its id later began later.
    pub(crate) began: u64,
}

impl Lender {
    /// The process that the kernel named, unless this one may access more than that one may.
    pub(crate) fn of(pid: u32) -> Option<Lender> {
        let (own, other) = (Rights::of(process::pid())?, Rights::of(pid)?);
        own.are_within(&other).then_some(())?;
        Some(Lender { pid, began: began(pid)? })
    }

    /// This process.
    #[cfg(test)]
    pub(crate) fn own() -> Lender {
        let pid = process::pid();
        Lender { pid, began: began(pid).unwrap() }
    }

    /// True as long as no other process can have its id.
    pub(crate) fn lives(self) -> bool {
        began(self.pid) == Some(self.began)
    }
}

/// What the kernel looks at before a process may access another one.
struct Rights {
    /// Real, effective, saved, and that of files.
    users: [u64; 4],
    groups: [u64; 4],
    capabilities: u64,
}

impl Rights {
    fn of(pid: u32) -> Option<Rights> {
        let mut buffer = [0; 4096];
        Self::parse(read(pid, "status", &mut buffer)?)
    }

    /// Reads the lines in /proc/PID/status.
    fn parse(text: &str) -> Option<Rights> {
        Some(Rights {
            users: four(text, "Uid:")?,
            groups: four(text, "Gid:")?,
            capabilities: u64::from_str_radix(value(text, "CapPrm:")?.trim(), 16).ok()?,
        })
    }

    /// True if a process that has these rights may access nothing that one with the `others` may not.
    fn are_within(&self, others: &Rights) -> bool {
        let is_one = |ids: &[u64; 4]| ids.iter().all(|id| *id == ids[0]);
        self.capabilities & (ACCESS_TO_ALL | !others.capabilities) == 0
            && is_one(&self.users)
            && is_one(&self.groups)
            && (self.users, self.groups) == (others.users, others.groups)
    }
}

/// What a line of /proc/PID/status says that begins so.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

/// The four numbers of such a line.
fn four(text: &str, name: &str) -> Option<[u64; 4]> {
    let mut numbers = value(text, name)?.split_whitespace().map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    Some([next()?, next()?, next()?, next()?])
}

/// The effective user of a process; `None` if /proc does not show it. Its line is among the first ones, so a small buffer will do.
/// Not inlined: each look for a peer would have the buffer in its frame, also in threads with the smallest stack.
#[cold]
#[inline(never)]
pub(super) fn effective_user(pid: u32) -> Option<u32> {
    let mut buffer = [0; 512];
    let [_, effective, ..] = four(read(pid, "status", &mut buffer)?, "Uid:")?;
    effective.try_into().ok()
}

/// When a process began.
fn began(pid: u32) -> Option<u64> {
    const FIELDS_BETWEEN: usize = 19;
    let mut buffer = [0; 512];
    let text = read(pid, "stat", &mut buffer)?;
    // The name may hold any character, so the line is read from behind it: " S 1 ..."
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(FIELDS_BETWEEN)?.parse().ok()
}

/// A file of /proc/PID, as far as it fits.
fn read<'a>(pid: u32, name: &str, buffer: &'a mut [u8]) -> Option<&'a str> {
    let path = process::path_of(pid, name);
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let fd = call!(openat, libc::AT_FDCWD, path.as_ptr() as usize, flags, 0).ok()? as Fd;
    let read = file::read(fd, buffer.as_mut_ptr(), buffer.len());
    file::close(fd);
    let text = &buffer[..read.ok()?];
    // A name may be no text.
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(text.len(), |end| end + 1);
    let from = text.iter().rposition(|byte| !byte.is_ascii()).map_or(0, |at| at + 1);
    std::str::from_utf8(text.get(from..whole)?).ok()
}

/// What /proc may say.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(text: &str) {
    if let Some(rights) = Rights::parse(text) {
        let _ = rights.are_within(&rights);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str =
        "Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nCapPrm:\t0000000000000005\n";

    fn rights(from: &str, to: &str) -> Rights {
        Rights::parse(&STATUS.replace(from, to)).unwrap()
    }

    #[test]
    fn nobody_is_read_by_who_may_access_more() {
        let other = rights("", "");
        assert!(rights("", "").are_within(&other));
        assert!(rights("0005", "0001").are_within(&other), "fewer capabilities");
        assert!(!rights("0005", "0007").are_within(&other), "more capabilities");
        assert!(!rights("\t7\t7\t7\t7", "\t9\t9\t9\t9").are_within(&other), "another user");
        assert!(!rights("\t8\t8\t8\t8", "\t9\t9\t9\t9").are_within(&other), "another group");
        let changed = rights("\t7\t7\t7\t7", "\t7\t7\t0\t7");
        assert!(!changed.are_within(&changed), "who may be another user again");
        let all = rights("00000005", "000fffff");
        assert!(!all.are_within(&all), "who may access everybody");
    }

    #[test]
    fn another_process_of_the_same_id_began_later() {
        let now = Lender::own();
        assert!(now.lives());
        assert!(!Lender { began: now.began - 1, ..now }.lives());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = Lender { pid: child.id(), began: began(child.id()).unwrap() };
        assert!(other.lives() && other.began >= now.began);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!other.lives());
    }
}
