//! File systems, as the kernel lists those that a process sees. This module asks none of them anything: one of the
//! network may not answer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Kinds of file systems whose names come over a network, from the host of this machine, or from a program, as those that an
/// automounter mounts.
const REMOTE: [&str; 19] = [
    "9p",
    "afs",
    "autofs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "smb3",
    "vboxsf",
    "virtiofs",
];
/// So many symbolic links the kernel follows on a way.
const MOST_LINKS: u32 = 40;

/// The kind of the file system of the network on which a path of a process lies, or to which it leads. `None` is the
/// caller. This follows symbolic links in the caller's path. In another's path the opener follows none.
pub fn remote_kind(pid: Option<u32>, path: &Path) -> Option<String> {
    let of = pid.map_or("self".to_owned(), |pid| pid.to_string());
    let list = std::fs::read(format!("/proc/{of}/mountinfo")).ok()?;
    let link = |at: &Path| pid.is_none().then(|| std::fs::read_link(at).ok())?;
    remote_on_the_way(&String::from_utf8_lossy(&list), path, link)
}

/// Looks at each folder on the way before anything in it is asked for.
fn remote_on_the_way(
    list: &str,
    path: &Path,
    link: impl Fn(&Path) -> Option<PathBuf>,
) -> Option<String> {
    let parts = |path: &Path| path.iter().rev().map(OsStr::to_owned).collect::<Vec<_>>();
    let (mut at, mut rest, mut links) = (PathBuf::from("/"), parts(path), 0);
    loop {
        let is_remote = |kind: &str| REMOTE.contains(&kind) || kind.starts_with("fuse");
        if let Some(kind) = kind_in(list, &at).filter(|kind| is_remote(kind)) {
            return Some(kind);
        }
        if let Some(target) = link(&at) {
            links += 1;
            at.pop();
            rest.extend(parts(&target));
        }
        let next = rest.pop().filter(|_| links <= MOST_LINKS)?;
        match next.as_bytes() {
            b".." => drop(at.pop()),
            _ => at.push(next),
        }
    }
}

/// The kind of the file system on which a path lies: the last one that is mounted nearest above it.
fn kind_in(list: &str, path: &Path) -> Option<String> {
    let mut found: Option<(usize, &str)> = None;
    for line in list.lines() {
        let (before, after) = line.split_once(" - ")?;
        let point = unescaped(before.split(' ').nth(4)?);
        let kind = after.split(' ').next()?;
        if path.starts_with(&point)
            && found.is_none_or(|(length, _)| point.as_os_str().len() >= length)
        {
            found = Some((point.as_os_str().len(), kind));
        }
    }
    found.map(|(_, kind)| kind.to_owned())
}

/// Spaces, and what else would end a word, are written as a backslash and three octal digits.
fn unescaped(word: &str) -> std::path::PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).filter(|_| *first == b'\\');
        let byte =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &more[3..] } else { more };
    }
    std::ffi::OsStr::from_bytes(&bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_tells() {
        let list = "22 1 0:20 / / rw - ext4 /dev/vda rw\n\
                    30 22 0:21 / /run rw,nosuid shared:5 - tmpfs tmpfs rw\n\
                    31 30 0:22 / /run/a\\040b rw - nfs4 host:/x rw\n\
                    32 30 0:22 / /run/over rw - tmpfs tmpfs rw\n\
                    33 30 0:22 / /run/over rw - fuse.sshfs host: rw\n";
        let kind = |path: &str| kind_in(list, Path::new(path));
        assert_eq!(kind("/tmp/x").as_deref(), Some("ext4"));
        assert_eq!(kind("/run/x").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/run/a b/x").as_deref(), Some("nfs4"));
        assert_eq!(kind("/run/over").as_deref(), Some("fuse.sshfs"));
        assert_eq!(kind("/running").as_deref(), Some("ext4"));
        assert_eq!(remote_kind(None, Path::new("/dev/shm")), None);
    }

    #[test]
    fn a_link_to_a_file_system_of_the_network_leads_there() {
        let list = "22 1 0:20 / / rw - ext4 /dev/vda rw\n\
                    30 22 0:21 / /home rw - nfs host:/x rw\n\
                    31 22 0:22 / /net rw - autofs -hosts rw\n";
        let link = |at: &Path| {
            assert!(!at.starts_with("/home") && !at.starts_with("/net"), "{at:?} is asked for");
            let target = match at.to_str()? {
                "/run/a" => "/home/a",
                "/run/b" => "c/../../net/host/x",
                "/run/loop" => "loop",
                "/run/local" => "../tmp",
                _ => return None,
            };
            Some(PathBuf::from(target))
        };
        let kind = |path: &str| remote_on_the_way(list, Path::new(path), link);
        assert_eq!(kind("/home/a").as_deref(), Some("nfs"));
        assert_eq!(kind("/run/a").as_deref(), Some("nfs"));
        assert_eq!(kind("/run/a/b").as_deref(), Some("nfs"));
        assert_eq!(kind("/run/b/c").as_deref(), Some("autofs"));
        assert_eq!(kind("/run/../home").as_deref(), Some("nfs"));
        for local in ["/", "/run/x", "/run/local/x", "/run/loop/x", "/homer"] {
            assert_eq!(kind(local), None, "{local}");
        }
    }
}
