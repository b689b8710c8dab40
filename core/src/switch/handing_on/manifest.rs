//! What a process leaves to the image that follows it (exec), and under which numbers; what it sends along with
//! descriptors in a message.
//!
//! A sealed memfd with one entry for each socket. For another image it lies at a number where the library looks
//! when it is loaded, and the other descriptors that the entries name keep their numbers. In a message it is the
//! last descriptor, after those that the entries name, which are after the program's own. Entries come from this
//! library itself; they are checked nevertheless.

use crate::sys::{file, Fd, Result};

/// Where a manifest is found: below the numbers of hidden descriptors, above a program's own.
pub(in crate::switch) const NUMBERS: [Fd; 2] = [899, 99];

const MAGIC: u64 = u64::from_le_bytes(*b"sanshimX");
/// Of what is in a message; two more words follow: how many descriptors are the program's, and how many the
/// entries'.
const MESSAGE_MAGIC: u64 = u64::from_le_bytes(*b"sanshimM");
const VERSION: u64 = 4;
/// Most sockets: as many as there can be hidden descriptors for.
const MOST: usize = 4096;

/// What an entry is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum Entry {
    /// An end of a connection.
    Connection {
        /// Device and inode of the socket.
        identity: (u64, u64),
        /// Of the endpoint's memory, and of the segment.
        fds: [Fd; 2],
        /// The program set options before it was on the SAN.
        has_options: bool,
    },
    /// A listener.
    Listener {
        /// As above.
        identity: (u64, u64),
        /// Of what its processes share.
        fds: [Fd; 1],
        /// As above.
        has_options: bool,
    },
}

/// An entry's words: kind, device, inode, options, descriptors (2).
const WORDS: usize = 6;

impl Entry {
    pub(in crate::switch) fn identity(&self) -> (u64, u64) {
        match self {
            Entry::Connection { identity, .. } | Entry::Listener { identity, .. } => *identity,
        }
    }

    /// The descriptors that have to be there.
    pub(in crate::switch) fn fds(&self) -> &[Fd] {
        match self {
            Entry::Connection { fds, .. } => fds,
            Entry::Listener { fds, .. } => fds,
        }
    }

    /// The same with each descriptor replaced; `None` if one has nothing in its place.
    pub(in crate::switch) fn map_fds(&self, mut to: impl FnMut(Fd) -> Option<Fd>) -> Option<Entry> {
        let mut other = *self;
        match &mut other {
            Entry::Connection { fds, .. } => {
                for fd in fds {
                    *fd = to(*fd)?;
                }
            }
            Entry::Listener { fds, .. } => {
                for fd in fds {
                    *fd = to(*fd)?;
                }
            }
        }
        Some(other)
    }

    fn encode(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        (words[1], words[2]) = self.identity();
        for (word, fd) in words[4..].iter_mut().zip(self.fds()) {
            *word = *fd as u64;
        }
        match self {
            Entry::Connection { has_options, .. } => words[3] = u64::from(*has_options),
            Entry::Listener { has_options, .. } => {
                (words[0], words[3]) = (1, u64::from(*has_options));
            }
        }
        words
    }

    fn decode(words: &[u64; WORDS]) -> Option<Entry> {
        let identity = (words[1], words[2]);
        let has_options = words[3] != 0;
        let mut fds = [0; 2];
        for (fd, word) in fds.iter_mut().zip(&words[4..]) {
            *fd = Fd::try_from(*word).ok()?;
        }
        match words[0] {
            0 => Some(Entry::Connection { identity, fds, has_options }),
            1 => Some(Entry::Listener { identity, fds: [fds[0]], has_options }),
            _ => None,
        }
    }
}

/// A manifest with these entries, close-on-exec.
pub(in crate::switch) fn write(entries: &[Entry]) -> Result<Fd> {
    let mut words = vec![MAGIC, VERSION];
    words.extend(entries.iter().flat_map(Entry::encode));
    file::sealed_content(c"sanshim-exec", &words)
}

/// The entries of the manifest behind `fd`; `None`: it is something else, the program's own.
pub(in crate::switch) fn read(fd: Fd) -> Option<Vec<Entry>> {
    let ([], entries) = parts(fd, MAGIC)?;
    Some(entries)
}

/// What is after the program's descriptors in a message.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::switch) struct Carried {
    /// The program's descriptors.
    pub own: usize,
    /// With places among the descriptors that follow them, instead of numbers.
    pub entries: Vec<Entry>,
}

/// A manifest for a message with `own` descriptors of the program's, and `added` ones that the entries name by
/// their places.
pub(in crate::switch) fn write_carried(entries: &[Entry], own: usize, added: usize) -> Result<Fd> {
    let mut words = vec![MESSAGE_MAGIC, VERSION, own as u64, added as u64];
    words.extend(entries.iter().flat_map(Entry::encode));
    file::sealed_content(c"sanshim-message", &words)
}

/// What a message carries whose last descriptor is `fd`, of `all` descriptors; `None`: the program's own.
pub(in crate::switch) fn read_carried(fd: Fd, all: usize) -> Option<Carried> {
    let ([own, added], entries) = parts(fd, MESSAGE_MAGIC)?;
    let places = entries.iter().flat_map(Entry::fds);
    let is_valid = own.checked_add(added)?.checked_add(1)? == all as u64
        && places.into_iter().all(|place| (*place as u64) < added);
    is_valid.then_some(Carried { own: own as usize, entries })
}

/// The words after the version, and the entries.
fn parts<const N: usize>(fd: Fd, magic: u64) -> Option<([u64; N], Vec<Entry>)> {
    let size = file::sealed_content_size(fd)?;
    let head = 2 + N;
    let count = size.checked_sub(head * 8)? / (WORDS * 8);
    if count > MOST || size != (head + count * WORDS) * 8 {
        return None;
    }
    let mut words = vec![0u64; size / 8];
    if file::pread(fd, words.as_mut_ptr().cast(), size, 0) != Ok(size)
        || words[..2] != [magic, VERSION]
    {
        return None;
    }
    let entries = words[head..].chunks_exact(WORDS);
    let entries = entries.map(|words| Entry::decode(words.try_into().ok()?)).collect::<Option<_>>();
    Some((words[2..head].try_into().ok()?, entries?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let entries = [
            Entry::Connection { identity: (9, u64::MAX), fds: [1024, 65535], has_options: true },
            Entry::Listener { identity: (8, 7), fds: [900], has_options: false },
        ];
        let fd = write(&entries).unwrap();
        assert_eq!(read(fd).as_deref(), Some(&entries[..]));
        file::close(fd);
    }

    #[test]
    fn in_a_message_entries_name_places() {
        let entry = |fds| Entry::Connection { identity: (9, 8), fds, has_options: false };
        let places = entry([70, 71]).map_fds(|fd| Some(fd - 70)).unwrap();
        assert_eq!(entry([70, 71]).map_fds(|fd| (fd == 70).then_some(0)), None);
        let fd = write_carried(&[places], 3, 2).unwrap();
        assert_eq!(read_carried(fd, 6), Some(Carried { own: 3, entries: vec![entry([0, 1])] }));
        assert_eq!(read_carried(fd, 5), None, "one was lost");
        assert_eq!(read(fd), None, "it is for no image");
        file::close(fd);
        let wrong = write_carried(&[places], 3, 1).unwrap();
        assert_eq!(read_carried(wrong, 5), None, "no such place");
        file::close(wrong);
        let other = write(&[places]).unwrap();
        assert_eq!(read_carried(other, 6), None);
        file::close(other);
    }

    #[test]
    fn nothing_else_is_taken_for_one() {
        let foreign = [
            file::sealed_content(c"test", &[MAGIC]),
            file::sealed_content(c"test", &[MAGIC, VERSION + 1]),
            file::sealed_content(c"test", &[MAGIC, VERSION, 0]),
            file::sealed_content(c"test", &[[MAGIC, VERSION].as_slice(), &[2; WORDS]].concat()),
            file::sealed_memory(c"test", 4096),
            file::eventfd(0),
        ];
        for fd in foreign {
            let fd = fd.unwrap();
            assert_eq!(read(fd), None);
            file::close(fd);
        }
    }
}
