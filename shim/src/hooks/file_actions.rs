//! posix_spawn's file actions: what they do, and copies that do more.
//!
//! glibc offers no way to read them. Their layout has been the same since posix_spawn exists; an
//! action that is not known here is never guessed.

use libc::{c_int, posix_spawn_file_actions_t};
use sanshim_core::switch::exec::Actions;

#[repr(C)]
struct FileActions {
    allocated: c_int,
    used: c_int,
    actions: *const Action,
    padding: [c_int; 16],
}

const _: () = assert!(size_of::<FileActions>() == size_of::<posix_spawn_file_actions_t>());

#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    kind: c_int,
    /// Beyond the kind everything is a union, aligned for a pointer.
    padding: c_int,
    fd: c_int,
    to: c_int,
    rest: [usize; 2],
}

const CLOSE: c_int = 0;
const DUP2: c_int = 1;
const OPEN: c_int = 2;
const CHDIR: c_int = 3;
const FCHDIR: c_int = 4;

/// What file actions do.
pub(super) struct Read {
    /// To descriptors.
    pub actions: Actions,
    /// The program's path counts from another folder.
    pub changes_folder: bool,
    /// False: there is one among them whose effect is not told here (closefrom).
    pub complete: bool,
}

unsafe fn all<'a>(actions: *const posix_spawn_file_actions_t) -> &'a [Action] {
    // SAFETY: null, or an initialized object of glibc's.
    unsafe {
        match actions.cast::<FileActions>().as_ref() {
            Some(actions) if actions.used > 0 => {
                std::slice::from_raw_parts(actions.actions, actions.used as usize)
            }
            _ => &[],
        }
    }
}

pub(super) unsafe fn read(actions: *const posix_spawn_file_actions_t) -> Read {
    let mut read = Read { actions: Actions::default(), changes_folder: false, complete: true };
    // SAFETY: the caller's promise.
    for one in unsafe { all(actions) } {
        match one.kind {
            CLOSE | OPEN => read.actions.replaced.push(one.fd),
            DUP2 => {
                read.actions.replaced.push(one.to);
                read.actions.duplicated.push((one.fd, one.to));
            }
            CHDIR | FCHDIR => read.changes_folder = true,
            _ => read.complete = false,
        }
    }
    read
}

/// A copy of file actions with more at its end.
pub(super) struct Extended {
    header: FileActions,
    _actions: Vec<Action>,
}

impl Extended {
    /// `more`: dup2 from, to; the same number twice clears close-on-exec.
    pub(super) unsafe fn new(
        given: *const posix_spawn_file_actions_t,
        more: &[(c_int, c_int)],
    ) -> Extended {
        // SAFETY: the caller's promise.
        let mut actions = unsafe { all(given) }.to_vec();
        actions.extend(more.iter().map(|(from, to)| Action {
            kind: DUP2,
            padding: 0,
            fd: *from,
            to: *to,
            rest: [0; 2],
        }));
        let count = actions.len() as c_int;
        let header = FileActions {
            allocated: count,
            used: count,
            actions: actions.as_ptr(),
            padding: [0; 16],
        };
        Extended { header, _actions: actions }
    }

    /// For posix_spawn, as long as this exists.
    pub(super) fn as_ptr(&self) -> *const posix_spawn_file_actions_t {
        (&raw const self.header).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" {
        fn posix_spawn_file_actions_addclosefrom_np(
            actions: *mut posix_spawn_file_actions_t,
            from: c_int,
        ) -> c_int;
    }

    #[test]
    fn actions_made_by_libc_are_read_and_extended() {
        let mut given = std::mem::MaybeUninit::<posix_spawn_file_actions_t>::uninit();
        // SAFETY: initialized by the first call.
        unsafe {
            let at = given.as_mut_ptr();
            libc::posix_spawn_file_actions_init(at);
            libc::posix_spawn_file_actions_adddup2(at, 7, 0);
            libc::posix_spawn_file_actions_addclose(at, 8);
            libc::posix_spawn_file_actions_addopen(at, 9, c"/dev/null".as_ptr(), 0, 0);
            let before = read(at);
            assert_eq!(before.actions.duplicated, [(7, 0)]);
            assert_eq!(before.actions.replaced, [0, 8, 9]);
            assert!(before.complete && !before.changes_folder);
            let extended = Extended::new(at, &[(5, 5)]);
            let after = read(extended.as_ptr());
            assert_eq!(after.actions.duplicated, [(7, 0), (5, 5)]);
            assert_eq!(after.actions.replaced, [0, 8, 9, 5]);
            posix_spawn_file_actions_addclosefrom_np(at, 3);
            assert!(!read(at).complete);
            libc::posix_spawn_file_actions_destroy(at);
            assert!(read(std::ptr::null()).complete);
        }
    }
}
