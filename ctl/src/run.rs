//! `sanctl run`: becomes the program, with the library in LD_PRELOAD.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::cli::RunArguments;
use crate::executable::{examine, resolve, Obstacle, Verdict};

use crate::library;
use crate::obstacle::explain;
use crate::output::{complain, plain};
use crate::rules;
use crate::runtime;

/// The shim cannot be used. env, nohup and others have this status for failures of their own.
const OWN_FAILURE: i32 = 125;
/// The program cannot be run. As in sh.
const NOT_RUNNABLE: i32 = 126;
/// There is no such program. As in sh.
const NOT_FOUND: i32 = 127;

/// Returns only when the program cannot be run, and gives the exit status then.
pub(crate) fn run(arguments: &RunArguments) -> i32 {
    let found = library::find();
    let library = match found.and_then(|library| library::check_fits(&library).map(|()| library)) {
        Ok(library) => library,
        Err(why) => {
            complain(&why);
            return OWN_FAILURE;
        }
    };
    if let Err(why) = arguments.config.as_deref().map_or(Ok(()), rules::check_named) {
        complain(&why);
        return OWN_FAILURE;
    }
    let [program, ..] = arguments.program.as_slice() else { return NOT_FOUND };

    let path = resolve(program, env::var_os("PATH"));
    let verdict = path.as_ref().map_or(Verdict::Unknown, |path| examine(path, true));
    if let Verdict::Cannot(obstacle) = &verdict {
        let program = Path::new(program).display();
        complain(&format!("{program} runs on plain TCP: {}", explain(obstacle)));
    }
    if !matches!(verdict, Verdict::Cannot(Obstacle::OtherLibc(_))) {
        let existing = env::var_os("LD_PRELOAD");
        let runtime = path.as_deref().and_then(runtime::that_comes_first);
        let value = library::preload(&library, runtime.as_deref(), existing.as_deref());
        env::set_var("LD_PRELOAD", value);
    }
    // A user who names a file wants a log.
    let says_nothing = env::var_os("SANSHIM_LOG").is_none_or(|level| level.is_empty());
    let level = arguments.log_file.is_some() && says_nothing;
    set("SANSHIM_LOG", arguments.log.as_deref().or(level.then_some(OsStr::new("info"))));
    // Absolute, because the program's children may start in other folders.
    set("SANSHIM_LOG_FILE", arguments.log_file.as_deref().map(absolute).as_deref());
    set("SANSHIM_CONFIG", arguments.config.as_deref().map(absolute).as_deref());

    let error = execute(&arguments.program);
    complain(&format!("cannot run {}: {}", Path::new(program).display(), plain(&error)));
    match error.raw_os_error() {
        Some(libc::ENOENT) => NOT_FOUND,
        _ => NOT_RUNNABLE,
    }
}

fn set(name: &str, value: Option<&OsStr>) {
    if let Some(value) = value {
        env::set_var(name, value);
    }
}

fn absolute(path: &Path) -> OsString {
    std::path::absolute(path).map_or_else(|_| path.into(), Into::into)
}

/// Runs the program in this process's place. Looks it up in PATH as a shell does. Returns only on failure.
///
/// std's `Command::exec` would reset the signal mask and SIGPIPE, which the program is to inherit.
fn execute(program: &[OsString]) -> io::Error {
    let arguments: Result<Vec<_>, _> =
        program.iter().map(|argument| CString::new(argument.clone().into_vec())).collect();
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(error) => return error.into(),
    };
    let pointers: Vec<_> =
        arguments.iter().map(|argument| argument.as_ptr()).chain([std::ptr::null()]).collect();
    // SAFETY: a NULL-terminated array of NUL-terminated strings, alive during the call.
    unsafe { libc::execvp(pointers[0], pointers.as_ptr()) };
    let error = io::Error::last_os_error();
    if program[0].as_bytes().is_empty() {
        return io::Error::from_raw_os_error(libc::ENOENT);
    }
    error
}
