//! exec, posix_spawn, seccomp and the ways out of a process. fork is seen through pthread_atfork.

use super::file_actions;
use crate::real::{hooks, set_errno};
use libc::{c_char, c_int, c_ulong, pid_t};
use sanshim_core::switch;
use sanshim_core::switch::exec::{before_confinement, before_exec, Way};
use sanshim_core::switch::image::Program;
use sanshim_core::switch::lifecycle;

type Arguments = *const *const c_char;

/// Runs an exec; comes back only if it failed.
fn exec(program: Program, real: impl FnOnce() -> c_int) -> c_int {
    let prepared = before_exec(&program, Way::Exec);
    let result = real();
    let e = crate::real::errno();
    prepared.undo(true);
    set_errno(e);
    result
}

/// What runs with this process's own environment.
fn environment() -> Arguments {
    extern "C" {
        static environ: Arguments;
    }
    // SAFETY: libc's own; whoever changes it meanwhile races with libc's exec as well.
    unsafe { environ }
}

unsafe fn spawn(
    program: Program,
    given: *const libc::posix_spawn_file_actions_t,
    real: impl FnOnce(*const libc::posix_spawn_file_actions_t) -> c_int,
) -> c_int {
    // SAFETY: the program's file actions.
    let read = unsafe { file_actions::read(given) };
    let is_clear = read.complete && (program.is_absolute() || !read.changes_folder);
    let way = if is_clear { Way::Spawn(&read.actions) } else { Way::Unseen(&read.actions) };
    let prepared = before_exec(&program, way);
    let more: Vec<_> = prepared.actions().collect();
    let result = if more.is_empty() {
        real(given)
    } else {
        // SAFETY: as above.
        let extended = unsafe { file_actions::Extended::new(given, &more) };
        real(extended.as_ptr())
    };
    prepared.undo(result != 0);
    result
}

hooks! {
    fn execve(path: *const c_char, arguments: Arguments, environment: Arguments) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        let program = unsafe { Program::at(path, environment) };
        exec(program, || real(path, arguments, environment))
    }

    fn execv(path: *const c_char, arguments: Arguments) -> c_int = |real| {
        // SAFETY: the program's arguments.
        let program = unsafe { Program::at(path, environment()) };
        exec(program, || real(path, arguments))
    }

    fn execvp(file: *const c_char, arguments: Arguments) -> c_int = |real| {
        // SAFETY: the program's arguments.
        let program = unsafe { Program::named(file, environment()) };
        exec(program, || real(file, arguments))
    }

    fn execvpe(file: *const c_char, arguments: Arguments, environment: Arguments) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        let program = unsafe { Program::named(file, environment) };
        exec(program, || real(file, arguments, environment))
    }

    fn fexecve(fd: c_int, arguments: Arguments, environment: Arguments) -> c_int = |real| {
        let path = format!("/proc/self/fd/{fd}\0");
        // SAFETY: a terminated string, and the program's environment.
        let program = unsafe { Program::at(path.as_ptr().cast(), environment) };
        exec(program, || real(fd, arguments, environment))
    }

    fn execveat(folder: c_int, path: *const c_char, arguments: Arguments,
        environment: Arguments, flags: c_int) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        let program = match unsafe { Program::at(path, environment) } {
            program if flags == 0 && (folder == libc::AT_FDCWD || program.is_absolute()) => program,
            _ => Program::UNKNOWN,
        };
        exec(program, || real(folder, path, arguments, environment, flags))
    }

    fn posix_spawn(pid: *mut pid_t, path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: Arguments, environment: Arguments) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        unsafe {
            let program = Program::at(path, environment);
            spawn(program, actions, |actions| {
                real(pid, path, actions, attributes, arguments, environment)
            })
        }
    }

    fn posix_spawnp(pid: *mut pid_t, file: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: Arguments, environment: Arguments) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        unsafe {
            let program = Program::named(file, environment);
            spawn(program, actions, |actions| {
                real(pid, file, actions, attributes, arguments, environment)
            })
        }
    }

    // Variadic in libc: the arguments are there or not, and passing them on does no harm.
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int = |real| {
        if option == libc::PR_SET_SECCOMP {
            before_confinement();
        }
        real(option, a, b, c, d)
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
