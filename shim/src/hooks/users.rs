//! Changes of the user. If the program makes one by the number of the system call (`syscall`), only the calling thread
//! changes.

use crate::real::hooks;
use libc::{c_int, uid_t};
use sanshim_core::switch::setup::before_user_change;

hooks! {
    fn setuid(user: uid_t) -> c_int = |real| {
        before_user_change();
        real(user)
    }

    fn seteuid(user: uid_t) -> c_int = |real| {
        before_user_change();
        real(user)
    }

    fn setreuid(user: uid_t, effective: uid_t) -> c_int = |real| {
        before_user_change();
        real(user, effective)
    }

    fn setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int = |real| {
        before_user_change();
        real(user, effective, saved)
    }
}
