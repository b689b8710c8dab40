//! Changes of the user, which by their numbers (`syscall`) are the calling thread's alone.

use crate::real::hooks;
use libc::{c_int, uid_t};
use sanshim_core::switch::trust::before_user_change;
use sanshim_core::switch::{setup, unseen};

/// What leaves a user as it is.
const SAME: uid_t = uid_t::MAX;

pub(super) fn before(effective: uid_t) {
    unseen::appear();
    setup::before_user_change();
    before_user_change((effective != SAME).then_some(effective));
}

hooks! {
    fn setuid(user: uid_t) -> c_int = |real| {
        before(user);
        real(user)
    }

    fn seteuid(user: uid_t) -> c_int = |real| {
        before(user);
        real(user)
    }

    fn setreuid(user: uid_t, effective: uid_t) -> c_int = |real| {
        before(effective);
        real(user, effective)
    }

    fn setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int = |real| {
        before(effective);
        real(user, effective, saved)
    }
}
