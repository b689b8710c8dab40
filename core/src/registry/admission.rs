//! With whom a process shares memory besides its own user and root, as `sanctl check --with` tells.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Room for allowed users.
const USERS: usize = 256;

/// Its part of the header. Written once; a fork child has its parent's. All numbers are those of the process's user
/// namespace.
#[repr(C)]
pub(super) struct Admission {
    started_as: AtomicU32,
    /// How many users the configuration allows; there may be more than there is room for.
    count: AtomicU32,
    users: [AtomicU32; USERS],
}

/// What a reader sees of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// The user that the process was started as.
    pub started_as: u32,
    /// Those that its configuration allows; `None` if they are too many to be published.
    pub users: Option<Vec<u32>>,
}

impl Admission {
    pub(super) fn set(&self, started_as: u32, users: impl Iterator<Item = u32>) {
        self.started_as.store(started_as, Relaxed);
        let mut count = 0;
        for user in users {
            if let Some(place) = self.users.get(count) {
                place.store(user, Relaxed);
            }
            count += 1;
        }
        self.count.store(count as u32, Relaxed);
    }

    pub(super) fn copy_from(&self, from: &Admission) {
        let users = from.users.iter().map(|user| user.load(Relaxed));
        self.set(from.started_as.load(Relaxed), users);
        self.count.store(from.count.load(Relaxed), Relaxed);
    }

    pub(super) fn read(&self) -> Admitted {
        let users = self.users.get(..self.count.load(Relaxed) as usize);
        let users = users.map(|users| users.iter().map(|user| user.load(Relaxed)).collect());
        Admitted { started_as: self.started_as.load(Relaxed), users }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Admission {
        let (started_as, count) = (AtomicU32::new(0), AtomicU32::new(0));
        Admission { started_as, count, users: [const { AtomicU32::new(0) }; USERS] }
    }

    #[test]
    fn what_is_set_is_read_as_far_as_there_is_room() {
        let (one, copy) = (empty(), empty());
        assert_eq!(one.read(), Admitted { started_as: 0, users: Some(vec![]) });
        for users in [vec![], vec![7, u32::MAX - 1], (1..=256).collect::<Vec<_>>()] {
            one.set(5, users.iter().copied());
            copy.copy_from(&one);
            assert_eq!(copy.read(), Admitted { started_as: 5, users: Some(users) });
        }
        one.set(0, 1..=257);
        copy.copy_from(&one);
        assert_eq!(copy.read().users, None);
        one.count.store(u32::MAX, Relaxed);
        assert_eq!(one.read().users, None);
    }
}
