//! How much of what the kernel limits this process may still take. Each question opens, reads and closes files, and may
//! wait for the kernel. So the path of data asks none.

use super::{call, file, hidden, process};
use std::ffi::CString;

/// One resource: the least of all limits that hold for it, and what is left of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) limit: u64,
    pub(crate) free: u64,
    /// So many processes take of it.
    pub(crate) sharers: u64,
}

impl Room {
    /// Without a limit that is known.
    pub(crate) const ENDLESS: Room = Room { limit: u64::MAX, free: u64::MAX, sharers: 1 };

    /// The room below `limit`, of which `used` is taken.
    fn of(limit: u64, used: u64) -> Room {
        Room { limit, free: limit.saturating_sub(used), sharers: 1 }
    }

    /// Where both hold.
    fn and(self, other: Room) -> Room {
        if other.free < self.free {
            other
        } else {
            self
        }
    }
}

/// Bytes of memory, where a memory cgroup of either version limits them, this process's or one above it; or the kernel, which
/// commits no more than there is (`vm.overcommit_memory` is 2).
pub(crate) fn memory() -> Room {
    let mut text = Vec::new();
    let groups = read("/proc/self/cgroup", &mut text).map(of_groups).unwrap_or(Room::ENDLESS);
    if file::is_overcommit_strict() {
        return groups.and(committed());
    }
    groups
}

/// Bytes of address space (RLIMIT_AS).
pub(crate) fn addresses() -> Room {
    let mut limit = libc::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let _ = call!(prlimit64, 0, libc::RLIMIT_AS, 0, &mut limit as *mut _ as usize);
    if limit.rlim_cur == u64::MAX {
        return Room::ENDLESS;
    }
    let mut text = Vec::new();
    let pages =
        read("/proc/self/statm", &mut text).and_then(|text| number(text.split(' ').next()?));
    pages.map_or(Room::ENDLESS, |pages| Room::of(limit.rlim_cur, pages * super::PAGE as u64))
}

/// Descriptors (RLIMIT_NOFILE); those that the program may not use, where [`hidden`] ones lie aside.
pub(crate) fn descriptors() -> Room {
    let (soft, hard) = process::descriptor_limit();
    let limit = if hidden::aside().is_some() { hard - soft } else { soft };
    file::count_open().map_or(Room::ENDLESS, |used| Room::of(limit, used))
}

/// Mappings (`vm.max_map_count`). Counting them takes some 0.4 µs for each.
pub(crate) fn mappings() -> Room {
    let mut text = Vec::new();
    let limit = read("/proc/sys/vm/max_map_count", &mut text).and_then(number);
    let Some(limit) = limit else { return Room::ENDLESS };
    let mut count = 0;
    match each_piece("/proc/self/maps", |piece| count += lines_in(piece)) {
        Some(()) => Room::of(limit, count),
        None => Room::ENDLESS,
    }
}

/// Where the hierarchies of memory cgroups are mounted, and the names of their files: of version 2 alone, of version 2
/// beside version 1, and of version 1. A file that limits nothing is not there, or says so.
struct Hierarchy {
    mounted: &'static str,
    is_first: bool,
    limits: &'static [&'static str],
    usage: &'static str,
    /// The line of memory.stat that counts what the kernel gives up for others.
    spare: &'static str,
}

const HIERARCHIES: [Hierarchy; 3] = [
    Hierarchy { mounted: "/sys/fs/cgroup", ..VERSION_2 },
    Hierarchy { mounted: "/sys/fs/cgroup/unified", ..VERSION_2 },
    Hierarchy {
        mounted: "/sys/fs/cgroup/memory",
        is_first: true,
        limits: &["memory.limit_in_bytes"],
        usage: "memory.usage_in_bytes",
        spare: "total_inactive_file",
    },
];

const VERSION_2: Hierarchy = Hierarchy {
    mounted: "",
    is_first: false,
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    spare: "inactive_file",
};

/// The limits of a process that is in these groups, as its file `cgroup` says.
fn of_groups(groups: &str) -> Room {
    HIERARCHIES.iter().fold(Room::ENDLESS, |room, hierarchy| {
        let path = groups.lines().find_map(|line| hierarchy.path_in(line));
        path.map_or(room, |path| room.and(hierarchy.tightest(path)))
    })
}

impl Hierarchy {
    /// The path in a line `number:controllers:path`, if it is this hierarchy's.
    fn path_in<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_its = match self.is_first {
            true => controllers.split(',').any(|one| one == "memory"),
            false => controllers.is_empty(),
        };
        is_its.then_some(path)
    }

    /// The room of a group and all above it. In a container the path may be the host's. Then only the container's own
    /// group is there, where the hierarchy is mounted.
    fn tightest(&self, path: &str) -> Room {
        let mut room = Room::ENDLESS;
        let mut rest = path.trim_end_matches('/');
        loop {
            room = room.and(self.of_group(rest));
            let Some((above, _)) = rest.rsplit_once('/') else { break };
            rest = above;
        }
        if room.limit != u64::MAX {
            room.sharers = self.processes(path);
        }
        room
    }

    /// How many processes are in a group, or, in a container whose path is the host's, in the container's group.
    fn processes(&self, path: &str) -> u64 {
        let mut count = 0;
        let each = |piece: &[u8]| count += lines_in(piece);
        let path = path.trim_end_matches('/');
        let name = |path: &str| format!("{}{path}/cgroup.procs", self.mounted);
        if each_piece(&name(path), each).is_none() {
            let _ = each_piece(&name(""), |piece| count += lines_in(piece));
        }
        count.max(1)
    }

    fn of_group(&self, path: &str) -> Room {
        let name = |file: &str| format!("{}{path}/{file}", self.mounted);
        let mut text = Vec::new();
        let limits = self.limits.iter();
        let limits = limits.filter_map(|file| read(&name(file), &mut text).and_then(number));
        // Version 1 says that there is none by the largest number of pages.
        let Some(limit) = limits.min().filter(|limit| *limit < 1 << 60) else {
            return Room::ENDLESS;
        };
        let Some(used) = read(&name(self.usage), &mut text).and_then(number) else {
            return Room::ENDLESS;
        };
        let room = Room::of(limit, used);
        if room.free > limit / 2 {
            return room;
        }
        // To count it takes the kernel longer than all else.
        let spare = read(&name("memory.stat"), &mut text).and_then(|text| {
            text.lines().find_map(|line| number(line.strip_prefix(self.spare)?.strip_prefix(' ')?))
        });
        Room::of(limit, used.saturating_sub(spare.unwrap_or(0)))
    }
}

/// What the kernel commits to at most.
fn committed() -> Room {
    let mut text = Vec::new();
    let Some(text) = read("/proc/meminfo", &mut text) else { return Room::ENDLESS };
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        number(line.trim_start().split(' ').next()?).map(|kib| kib << 10)
    };
    match (bytes("CommitLimit:"), bytes("Committed_AS:")) {
        (Some(limit), Some(used)) => Room::of(limit, used),
        _ => Room::ENDLESS,
    }
}

fn lines_in(piece: &[u8]) -> u64 {
    piece.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// `None` for what is no number, as "max" of version 2.
fn number(text: &str) -> Option<u64> {
    text.trim_end().parse().ok()
}

/// The text of a file, read anew into `text`. `None` if it cannot be read.
fn read<'a>(path: &str, text: &'a mut Vec<u8>) -> Option<&'a str> {
    text.clear();
    each_piece(path, |piece| text.extend_from_slice(piece))?;
    std::str::from_utf8(text).ok()
}

fn each_piece(path: &str, mut each: impl FnMut(&[u8])) -> Option<()> {
    // Not on the stack: a handler's may be small. Clearing the piece would take more instructions than all else.
    let mut piece = Vec::with_capacity(16 << 10);
    let file = file::open_to_read(&CString::new(path).ok()?).ok()?;
    let done = loop {
        match file::read(file, piece.as_mut_ptr(), piece.capacity()) {
            Ok(0) => break Some(()),
            Ok(n) => {
                // SAFETY: the kernel has written the first `n` bytes of the room.
                unsafe { piece.set_len(n) };
                each(&piece);
            }
            Err(_) => break None,
        }
    };
    file::close(file);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_finds_its_groups() {
        let groups = "12:cpuset:/\n4:cpu,memory:/a/b\n0::/c\n";
        let path = |at: usize| groups.lines().find_map(|line| HIERARCHIES[at].path_in(line));
        assert_eq!([path(0), path(1), path(2)], [Some("/c"), Some("/c"), Some("/a/b")]);
        assert_eq!(of_groups("no lines of this kind"), Room::ENDLESS);
    }

    #[test]
    fn the_tightest_of_all_groups_counts() {
        let folder = std::env::temp_dir().join(format!("sanshim-limits-{}", std::process::id()));
        let mounted: &'static str = folder.to_str().unwrap().to_owned().leak();
        let group = |path: &str, max: &str, current: &str, inactive: u64| {
            let at = folder.join(path);
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("memory.max"), max).unwrap();
            std::fs::write(at.join("memory.current"), current).unwrap();
            let stat = format!("inactive_file_x 7\ninactive_file {inactive}\nfile 9\n");
            std::fs::write(at.join("memory.stat"), stat).unwrap();
        };
        let room = |limit, free, sharers| Room { limit, free, sharers };
        group("a/b/c", "max\n", "500\n", 0);
        std::fs::write(folder.join("a/b/c/cgroup.procs"), "7\n9\n12\n").unwrap();
        group("a/b", "1000\n", "900\n", 50);
        group("a", "2000\n", "1990\n", 300);
        let hierarchy = Hierarchy { mounted, ..VERSION_2 };
        assert_eq!(hierarchy.tightest("/a/b/c"), room(1000, 150, 3));
        assert_eq!(hierarchy.tightest("/a"), room(2000, 310, 1));
        std::fs::write(folder.join("a/memory.high"), "1700\n").unwrap();
        assert_eq!(hierarchy.tightest("/a/b/c/"), room(1700, 10, 3));
        assert_eq!(hierarchy.tightest("/elsewhere"), Room::ENDLESS);
        assert_eq!(hierarchy.tightest("/"), Room::ENDLESS);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn mappings_are_counted() {
        let Room { limit, free, .. } = mappings();
        let count = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64;
        assert!((limit - free).abs_diff(count) < 100, "{limit} {free} {count}");
    }
}
