//! posix_spawn's file actions: which descriptors they put elsewhere, and others that come before and behind them.
//!
//! glibc offers no way to read them. Their layout has been the same for as long as posix_spawn exists. The library does
//! not guess at an action that it does not know.

use libc::{c_int, posix_spawn_file_actions_t};
use sanshim_core::switch::exec::StandIn;
use sanshim_core::sys::Fd;

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
    /// A union follows the kind, aligned for a pointer.
    padding: c_int,
    fd: c_int,
    to: c_int,
    rest: [usize; 2],
}

const CLOSE: c_int = 0;
const DUP2: c_int = 1;
const OPEN: c_int = 2;

impl Action {
    const fn new(kind: c_int, fd: Fd, to: Fd) -> Self {
        Self { kind, padding: 0, fd, to, rest: [0; 2] }
    }

    /// The number at which there is something else from then on, or nothing.
    fn target(&self) -> Option<Fd> {
        match self.kind {
            CLOSE | OPEN => Some(self.fd),
            DUP2 => Some(self.to),
            _ => None,
        }
    }
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

/// The descriptors that dup2 puts elsewhere.
pub(super) unsafe fn duplicated(actions: *const posix_spawn_file_actions_t) -> Vec<c_int> {
    // SAFETY: the caller's promise.
    let all = unsafe { all(actions) };
    all.iter().filter(|one| one.kind == DUP2).map(|one| one.fd).collect()
}

/// The program's file actions, with those by which a child has ends in the place of connections.
pub(super) struct Extended {
    header: FileActions,
    /// What the header points to.
    _actions: Vec<Action>,
}

impl Extended {
    /// # Safety
    /// `given` is null or an initialized object of glibc's, which outlives this one.
    pub(super) unsafe fn new(
        given: *const posix_spawn_file_actions_t,
        stand_ins: &[StandIn],
    ) -> Self {
        // SAFETY: the caller's promise.
        let given = unsafe { all(given) };
        let puts = stand_ins.iter().map(|one| Action::new(DUP2, one.end, one.number));
        let is_kept = |number| given.iter().any(|one| one.target() == Some(number));
        let surplus = stand_ins.iter().filter(|one| !one.is_inherited && !is_kept(one.number));
        // dup2 made them such as the image inherits.
        let closes = surplus.map(|one| Action::new(CLOSE, one.number, 0));
        let actions: Vec<Action> = puts.chain(given.iter().copied()).chain(closes).collect();
        let count = actions.len() as c_int;
        let header = FileActions {
            allocated: count,
            used: count,
            actions: actions.as_ptr(),
            padding: [0; 16],
        };
        Self { header, _actions: actions }
    }

    /// For posix_spawn, while this object lives.
    pub(super) fn as_ptr(&self) -> *const posix_spawn_file_actions_t {
        std::ptr::from_ref(&self.header).cast()
    }
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
