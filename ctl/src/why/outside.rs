//! Says why a process that publishes nothing does not run under the shim.

use std::fs;
use std::io;
use std::path::Path;

use crate::executable::{examine, Verdict};
use sanshim_core::registry::Problem;

use crate::obstacle;
use crate::output::printable;

const NAME: &str = "libsanshim.so";

/// Says so in a line for people.
///
/// # Errors
/// When there is no such process, or it may not be looked at.
pub(super) fn explain(pid: u32, problems: &[Problem]) -> Result<String, String> {
    let folder = format!("/proc/{pid}");
    if !Path::new(&folder).exists() {
        return Err(format!("there is no process {pid}"));
    }
    let is_its = |problem: &&Problem| {
        problem.path.file_name().is_some_and(|name| name == pid.to_string().as_str())
    };
    if let Some(problem) = problems.iter().find(is_its) {
        return Err(format!("process {pid} cannot be read: {problem}"));
    }
    let name = fs::read_to_string(format!("{folder}/comm")).unwrap_or_default();
    let who = format!("{} (pid {pid})", printable(name.trim_end()));
    let is_loaded = has_loaded_the_shim(pid).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            match rustix::process::geteuid().is_root() {
                true => format!("{who} cannot be looked at: the kernel refuses it to this root, who lacks CAP_SYS_PTRACE there; ask as root outside of this container"),
                false => format!("{who} is another user's; ask as that user or as root"),
            }
        }
        _ => format!("{who}: {error}"),
    })?;
    if is_loaded {
        return Ok(format!("{who} has loaded the shim, and {}.\n", why_it_is_silent(pid)));
    }
    let environment = fs::read(format!("{folder}/environ")).unwrap_or_default();
    let is_preloaded =
        variable(&environment, "LD_PRELOAD").is_some_and(|value| contains(value, NAME.as_bytes()));
    let why = match examine(Path::new(&format!("{folder}/exe")), false) {
        Verdict::Cannot(what) => obstacle::explain(&what),
        _ if is_preloaded => {
            format!("LD_PRELOAD names {NAME}, which the loader did not find; see that the file is there")
        }
        _ => "it was started without it; start it with sanctl run".to_owned(),
    };
    Ok(format!("{who} runs without the shim: {why}.\n"))
}

/// Whether a process has the library, whatever it publishes.
///
/// # Errors
/// When it has ended, or may not be looked at.
pub(super) fn has_loaded_the_shim(pid: u32) -> io::Result<bool> {
    fs::read(format!("/proc/{pid}/maps")).map(|maps| contains(&maps, NAME.as_bytes()))
}

/// Why a process that has the library publishes nothing.
fn why_it_is_silent(pid: u32) -> &'static str {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    match variable(&environment, "SANSHIM") {
        Some(b"off") => "is switched off: SANSHIM=off; unset it and restart the program",
        _ => {
            "publishes nothing: it is a fork child none of whose connections was busy yet, is switched off in its \
             configuration, or has no /dev/shm, or a full one; its log (SANSHIM_LOG=warn) tells"
        }
    }
}

/// The value of a variable in an environment, as /proc has it.
fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environment.split(|&byte| byte == 0).find_map(|entry| {
        entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
    })
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
