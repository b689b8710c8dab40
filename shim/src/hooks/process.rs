//! exec, posix_spawn, seccomp and the ways out of a process. pthread_atfork sees fork, but not whether it failed. For
//! other ways to make a child the library notes that there may be one.

use super::file_actions;
use crate::real::{hooks, libc_symbol};
use libc::{c_char, c_int, c_ulong, pid_t};
use sanshim_core::logging;
use sanshim_core::switch;
use sanshim_core::switch::bring_back::before_confinement;
use sanshim_core::switch::exec::{before_exec, ExecWay};
use sanshim_core::switch::fork as forks;
use sanshim_core::sys::errno;
use sanshim_core::sys::process::expect_borrower;

type Arguments = *const *const c_char;

/// Runs an exec. Comes back only if it failed.
fn exec(real: impl FnOnce() -> c_int) -> c_int {
    let prepared = before_exec(ExecWay::Exec);
    let result = real();
    errno::kept(|| prepared.undo());
    result
}

unsafe fn spawn(
    actions: *const libc::posix_spawn_file_actions_t,
    real: impl FnOnce(*const libc::posix_spawn_file_actions_t) -> c_int,
) -> c_int {
    // SAFETY: the program's file actions.
    let duplicated = unsafe { file_actions::duplicated(actions) };
    let prepared = before_exec(ExecWay::Spawn(&duplicated));
    let stand_ins = prepared.stand_ins();
    let result = if stand_ins.is_empty() {
        real(actions)
    } else {
        // SAFETY: the program's file actions, which it leaves alone during the call.
        let extended = unsafe { file_actions::Extended::new(actions, stand_ins) };
        real(extended.as_ptr())
    };
    prepared.undo();
    result
}

hooks! {
    fn execve(path: *const c_char, arguments: Arguments, environment: Arguments) -> c_int
    = |real| { exec(|| real(path, arguments, environment)) }

    fn execv(path: *const c_char, arguments: Arguments) -> c_int
    = |real| { exec(|| real(path, arguments)) }

    fn execvp(file: *const c_char, arguments: Arguments) -> c_int
    = |real| { exec(|| real(file, arguments)) }

    fn execvpe(file: *const c_char, arguments: Arguments, environment: Arguments) -> c_int
    = |real| { exec(|| real(file, arguments, environment)) }

    fn fexecve(fd: c_int, arguments: Arguments, environment: Arguments) -> c_int
    = |real| { exec(|| real(fd, arguments, environment)) }

    fn execveat(folder: c_int, path: *const c_char, arguments: Arguments,
        environment: Arguments, flags: c_int) -> c_int
    = |real| { exec(|| real(folder, path, arguments, environment, flags)) }

    fn posix_spawn(pid: *mut pid_t, path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: Arguments, environment: Arguments) -> c_int
    = |real| {
        // SAFETY: the program's file actions.
        unsafe {
            spawn(actions, |actions| real(pid, path, actions, attributes, arguments, environment))
        }
    }

    fn posix_spawnp(pid: *mut pid_t, file: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: Arguments, environment: Arguments) -> c_int
    = |real| {
        // SAFETY: the program's file actions.
        unsafe {
            spawn(actions, |actions| real(pid, file, actions, attributes, arguments, environment))
        }
    }

    // Variadic in libc. To pass on arguments that are not there does no harm.
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int = |real| {
        if option == libc::PR_SET_SECCOMP {
            before_confinement();
        }
        real(option, a, b, c, d)
    }

    fn fork() -> pid_t = |real| {
        let child = real();
        if child < 0 && !switch::is_borrowed() {
            errno::kept(forks::without_other);
        }
        child
    }

    // libc's own ends the parent past the hook of _exit.
    fn daemon(stays_in_folder: c_int, keeps_streams: c_int) -> c_int = |real| {
        let result = real(stays_in_folder, keeps_streams);
        if result == 0 && !switch::is_borrowed() {
            forks::without_other();
            if keeps_streams == 0 {
                logging::standard_error_goes();
            }
        }
        result
    }

    fn _Fork() -> pid_t = |real| {
        expect_borrower();
        real()
    }

    fn _exit(status: c_int) -> () = |real| {
        if !switch::is_borrowed() {
            forks::exiting();
        }
        real(status)
    }

    fn _Exit(status: c_int) -> () = |real| {
        if !switch::is_borrowed() {
            forks::exiting();
        }
        real(status)
    }
}

/// Notes that there may be a child. Gives libc's own vfork.
extern "C" fn before_vfork() -> *mut libc::c_void {
    libc_symbol!(SYMBOL = vfork hooked by vfork as unsafe extern "C" fn() -> pid_t);
    errno::kept(|| {
        expect_borrower();
        SYMBOL.address()
    })
}

/// As [`before_vfork`], for clone.
extern "C" fn before_clone() -> *mut libc::c_void {
    libc_symbol!(SYMBOL = clone hooked by clone as unsafe extern "C" fn() -> c_int);
    errno::kept(|| {
        expect_borrower();
        SYMBOL.address()
    })
}

/// vfork returns twice. So this jumps to libc's own, which returns to the caller.
#[cfg(target_arch = "x86_64")]
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "jmp rax",
        before = sym before_vfork,
    )
}

/// clone is variadic. So this jumps to libc's own, which finds the arguments where they were.
#[cfg(target_arch = "x86_64")]
#[no_mangle]
#[unsafe(naked)]
unsafe extern "C" fn clone() -> c_int {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        before = sym before_clone,
    )
}

/// The list forms of exec are variadic, which a Rust function cannot be. The arguments that came in registers are
/// pushed in front of those that came on the stack. They take the place of the return address, so that all of them are
/// one array.
#[cfg(target_arch = "x86_64")]
macro_rules! list_form {
    ($symbol:ident, $name:ident, $array_form:path) => {
        libc_symbol!($symbol = $name hooked by $name as unsafe extern "C-unwind" fn() -> c_int);

        #[no_mangle]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() -> c_int {
            std::arch::naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                // The return address is kept here for the case that the call fails. This also aligns the stack.
                "push rax",
                "call {array_form}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                array_form = sym $array_form,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
list_form!(EXECL, execl, execv);
#[cfg(target_arch = "x86_64")]
list_form!(EXECLP, execlp, execvp);
#[cfg(target_arch = "x86_64")]
list_form!(EXECLE, execle, with_environment_behind);

/// execve where the environment comes behind the null pointer that ends the arguments.
unsafe extern "C-unwind" fn with_environment_behind(path: *const c_char, all: Arguments) -> c_int {
    let mut end = all;
    // SAFETY: the program's arguments up to a null pointer, and its environment behind that.
    unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, all, *end.add(1).cast())
    }
}
