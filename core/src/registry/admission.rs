//! With whom a process shares memory besides its own user and root, and where it meets them. `sanctl check --with`
//! tells it.

use crate::config::LONGEST_FOLDER;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering::Relaxed};

/// Room for allowed users.
const USERS: usize = 256;
/// Room for the folder's path and a zero, as whole words.
const PATH: usize = (LONGEST_FOLDER + 1).next_multiple_of(8);

/// Its part of the header. Written once; a fork child has its parent's. All numbers are those of the process's user
/// namespace.
#[repr(C)]
pub(super) struct Admission {
    started_as: AtomicU32,
    /// How many users the configuration allows; there may be more than there is room for.
    count: AtomicU32,
    users: [AtomicU32; USERS],
    /// The folder that the configuration names, as the process sees it; ends with a zero, and is empty if there is none.
    folder: [AtomicU8; PATH],
}

/// What a reader sees of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// The user that the process was started as.
    pub started_as: u32,
    /// Users that its configuration allows; `None` if they are too many to be published.
    pub users: Option<Vec<u32>>,
    /// The folder that its configuration names, by its path there.
    pub folder: Option<PathBuf>,
}

impl Admission {
    pub(super) fn set(
        &self,
        started_as: u32,
        users: impl Iterator<Item = u32>,
        folder: Option<&Path>,
    ) {
        self.started_as.store(started_as, Relaxed);
        let mut count = 0;
        for user in users {
            if let Some(place) = self.users.get(count) {
                place.store(user, Relaxed);
            }
            count += 1;
        }
        self.count.store(count as u32, Relaxed);
        let path = folder.map_or(&[][..], |path| path.as_os_str().as_bytes());
        let path = path.iter().copied().chain(std::iter::repeat(0));
        self.folder.iter().zip(path).for_each(|(place, byte)| place.store(byte, Relaxed));
    }

    pub(super) fn copy_from(&self, from: &Admission) {
        let users = from.users.iter().map(|user| user.load(Relaxed));
        self.set(from.started_as.load(Relaxed), users, from.folder().as_deref());
        self.count.store(from.count.load(Relaxed), Relaxed);
    }

    pub(super) fn read(&self) -> Admitted {
        let users = self.users.get(..self.count.load(Relaxed) as usize);
        let users = users.map(|users| users.iter().map(|user| user.load(Relaxed)).collect());
        Admitted { started_as: self.started_as.load(Relaxed), users, folder: self.folder() }
    }

    fn folder(&self) -> Option<PathBuf> {
        let bytes = self.folder.iter().map(|byte| byte.load(Relaxed));
        let path: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        Some(PathBuf::from(OsStr::from_bytes(&path))).filter(|path| path.is_absolute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Admission {
        let (started_as, count) = (AtomicU32::new(0), AtomicU32::new(0));
        let users = [const { AtomicU32::new(0) }; USERS];
        Admission { started_as, count, users, folder: [const { AtomicU8::new(0) }; PATH] }
    }

    #[test]
    fn what_is_set_is_read_as_far_as_there_is_room() {
        let (one, copy) = (empty(), empty());
        assert_eq!(one.read(), Admitted { users: Some(vec![]), ..Admitted::default() });
        for users in [vec![], vec![7, u32::MAX - 1], (1..=256).collect::<Vec<_>>()] {
            one.set(5, users.iter().copied(), None);
            copy.copy_from(&one);
            let expected = Admitted { started_as: 5, users: Some(users), folder: None };
            assert_eq!(copy.read(), expected);
        }
        one.set(0, 1..=257, None);
        copy.copy_from(&one);
        assert_eq!(copy.read().users, None);
        one.count.store(u32::MAX, Relaxed);
        assert_eq!(one.read().users, None);
    }

    #[test]
    fn a_folder_is_read_as_it_was_set() {
        let (one, copy) = (empty(), empty());
        let longest = format!("/{}", "x".repeat(LONGEST_FOLDER - 1));
        for path in [&longest, "/run/sanshim"] {
            one.set(0, [].into_iter(), Some(Path::new(path)));
            copy.copy_from(&one);
            assert_eq!(copy.read().folder.as_deref(), Some(Path::new(path)));
        }
        // Whatever else lies there.
        one.folder.iter().for_each(|byte| byte.store(b'x', Relaxed));
        assert_eq!(one.read().folder, None);
    }
}
