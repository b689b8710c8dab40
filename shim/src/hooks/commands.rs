//! system and popen. libc starts their shell itself, past the hooks of exec and posix_spawn. So the connections that
//! the shell inherits go back to TCP here.

use crate::real::hooks;
use libc::{c_char, c_int, FILE};
use sanshim_core::switch::exec::{before_exec, ExecWay};
use sanshim_core::sys::errno;

/// Runs `real`, in which a shell is started.
fn with_shell<T>(real: impl FnOnce() -> T) -> T {
    let prepared = before_exec(ExecWay::Shell);
    let result = real();
    errno::kept(|| prepared.undo());
    result
}

hooks! {
    fn system(command: *const c_char) -> c_int
    = |real| {
        if command.is_null() { real(command) } else { with_shell(|| real(command)) }
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE
    = |real| { with_shell(|| real(command, mode)) }

    // The name that old programs were linked with.
    fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut FILE
    = |real| { with_shell(|| real(command, mode)) }
}
