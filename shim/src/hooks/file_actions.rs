//! posix_spawn's file actions: which descriptors they put elsewhere.
//!
//! glibc offers no way to read them. Their layout has been the same for as long as posix_spawn exists. An action that
//! is not known here is not guessed at.

use libc::{c_int, posix_spawn_file_actions_t};

#[repr(C)]
struct FileActions {
    allocated: c_int,
    used: c_int,
    actions: *const Action,
    padding: [c_int; 16],
}

const _: () = assert!(size_of::<FileActions>() == size_of::<posix_spawn_file_actions_t>());

#[repr(C)]
struct Action {
    kind: c_int,
    /// What follows the kind is a union, aligned for a pointer.
    padding: c_int,
    fd: c_int,
    to: c_int,
    rest: [usize; 2],
}

const DUP2: c_int = 1;

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

/// The descriptors that dup2 puts elsewhere.
pub(super) unsafe fn duplicated(actions: *const posix_spawn_file_actions_t) -> Vec<c_int> {
    // SAFETY: the caller's promise.
    let all = unsafe { all(actions) };
    all.iter().filter(|one| one.kind == DUP2).map(|one| one.fd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_made_by_libc_are_read() {
        let mut given = std::mem::MaybeUninit::<posix_spawn_file_actions_t>::uninit();
        // SAFETY: initialized by the first call.
        unsafe {
            let at = given.as_mut_ptr();
            libc::posix_spawn_file_actions_init(at);
            libc::posix_spawn_file_actions_adddup2(at, 7, 0);
            libc::posix_spawn_file_actions_addclose(at, 8);
            libc::posix_spawn_file_actions_addopen(at, 9, c"/dev/null".as_ptr(), 0, 0);
            libc::posix_spawn_file_actions_adddup2(at, 5, 5);
            assert_eq!(duplicated(at), [7, 5]);
            libc::posix_spawn_file_actions_destroy(at);
            assert!(duplicated(std::ptr::null()).is_empty());
        }
    }
}
