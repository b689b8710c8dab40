//! File systems, as the kernel lists those that a process sees. Asks none of them anything: one of the network may not answer.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Kinds of file systems whose names come over a network, or from a program.
const REMOTE: [&str; 14] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "smb3",
    "virtiofs",
];

/// The kind of the file system on which a path of a process lies, if that is one of the network; `None` is the caller.
pub fn remote_kind(pid: Option<u32>, path: &Path) -> Option<String> {
    let of = pid.map_or("self".to_owned(), |pid| pid.to_string());
    let list = std::fs::read(format!("/proc/{of}/mountinfo")).ok()?;
    let kind = kind_in(&String::from_utf8_lossy(&list), path)?;
    (REMOTE.contains(&kind.as_str()) || kind.starts_with("fuse")).then_some(kind)
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
}
