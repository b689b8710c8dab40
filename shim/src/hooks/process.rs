//! exec, posix_spawn and the ways out of a process. fork is seen through pthread_atfork.

use crate::real::{hooks, set_errno};
use libc::{c_char, c_int, pid_t};
use sanshim_core::switch;
use sanshim_core::switch::exec::{before_exec, Exec};
use sanshim_core::switch::lifecycle;

type Arguments = *const *const c_char;

/// Runs an exec; comes back only if it failed.
fn exec(real: impl FnOnce() -> c_int) -> c_int {
    let prepared: Exec = before_exec(&[]);
    let result = real();
    let e = crate::real::errno();
    prepared.undo();
    set_errno(e);
    result
}

/// glibc's file actions, as far as needed to find what a child would be handed. The layout has
/// been the same since posix_spawn exists.
#[repr(C)]
struct FileActions {
    allocated: c_int,
    used: c_int,
    actions: *const Action,
}

#[repr(C)]
struct Action {
    kind: c_int,
    /// Beyond the kind everything is a union, aligned for a pointer.
    padding: c_int,
    fd: c_int,
    to: c_int,
    rest: [usize; 2],
}

const DUP2: c_int = 1;

/// The descriptors a child gets under other numbers.
unsafe fn handed_over(actions: *const libc::posix_spawn_file_actions_t) -> Vec<c_int> {
    if actions.is_null() {
        return Vec::new();
    }
    // SAFETY: an initialized object of glibc's.
    unsafe {
        let actions = &*actions.cast::<FileActions>();
        (0..actions.used.max(0) as usize)
            .map(|i| &*actions.actions.add(i))
            .filter(|one| one.kind == DUP2)
            .map(|one| one.fd)
            .collect()
    }
}

unsafe fn spawn(
    actions: *const libc::posix_spawn_file_actions_t,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the program's file actions.
    let prepared = before_exec(&unsafe { handed_over(actions) });
    let result = real();
    prepared.undo();
    result
}

hooks! {
    fn execve(path: *const c_char, arguments: Arguments, environment: Arguments) -> c_int
    = |real| {
        exec(|| real(path, arguments, environment))
    }

    fn execv(path: *const c_char, arguments: Arguments) -> c_int = |real| {
        exec(|| real(path, arguments))
    }

    fn execvp(file: *const c_char, arguments: Arguments) -> c_int = |real| {
        exec(|| real(file, arguments))
    }

    fn execvpe(file: *const c_char, arguments: Arguments, environment: Arguments) -> c_int
    = |real| {
        exec(|| real(file, arguments, environment))
    }

    fn fexecve(fd: c_int, arguments: Arguments, environment: Arguments) -> c_int = |real| {
        exec(|| real(fd, arguments, environment))
    }

    fn execveat(folder: c_int, path: *const c_char, arguments: Arguments,
        environment: Arguments, flags: c_int) -> c_int
    = |real| {
        exec(|| real(folder, path, arguments, environment, flags))
    }

    fn posix_spawn(pid: *mut pid_t, path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: Arguments, environment: Arguments) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        unsafe {
            spawn(actions, || real(pid, path, actions, attributes, arguments, environment))
        }
    }

    fn posix_spawnp(pid: *mut pid_t, file: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: Arguments, environment: Arguments) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        unsafe {
            spawn(actions, || real(pid, file, actions, attributes, arguments, environment))
        }
    }

    fn system(command: *const c_char) -> c_int = |real| {
        let prepared = before_exec(&[]);
        let result = real(command);
        prepared.undo();
        result
    }

    fn popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE = |real| {
        let prepared = before_exec(&[]);
        let result = real(command, kind);
        prepared.undo();
        result
    }

    fn _exit(status: c_int) -> () = |real| {
        if !switch::is_borrowed() {
            lifecycle::exiting();
        }
        real(status)
    }

    fn _Exit(status: c_int) -> () = |real| {
        if !switch::is_borrowed() {
            lifecycle::exiting();
        }
        real(status)
    }
}

/// The list forms of exec: the arguments follow each other like any pointers, up to a null one,
/// and are read no further. `rest` names as many as a call can sensibly have.
macro_rules! list_forms {
    ($($arg:ident)*) => {
        #[no_mangle]
        unsafe extern "C-unwind" fn execl(path: *const c_char $(, $arg: *const c_char)*) -> c_int {
            let all = [$($arg),*];
            match end(&all) {
                // SAFETY: a null-terminated array.
                Some(_) => unsafe { execv(path, all.as_ptr()) },
                None => too_many(),
            }
        }

        #[no_mangle]
        unsafe extern "C-unwind" fn execlp(file: *const c_char $(, $arg: *const c_char)*)
            -> c_int
        {
            let all = [$($arg),*];
            match end(&all) {
                // SAFETY: a null-terminated array.
                Some(_) => unsafe { execvp(file, all.as_ptr()) },
                None => too_many(),
            }
        }

        #[no_mangle]
        unsafe extern "C-unwind" fn execle(path: *const c_char $(, $arg: *const c_char)*)
            -> c_int
        {
            let all = [$($arg),*];
            match end(&all) {
                Some(end) if end + 1 < all.len() => {
                    // SAFETY: a null-terminated array; the environment follows its end.
                    unsafe { execve(path, all.as_ptr(), all[end + 1].cast()) }
                }
                _ => too_many(),
            }
        }
    };
}

fn end(all: &[*const c_char]) -> Option<usize> {
    all.iter().position(|a| a.is_null())
}

fn too_many() -> c_int {
    set_errno(libc::E2BIG);
    -1
}

list_forms!(a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18 a19 a20 a21 a22 a23
    a24 a25 a26 a27 a28 a29 a30 a31 a32 a33 a34 a35 a36 a37 a38 a39);
