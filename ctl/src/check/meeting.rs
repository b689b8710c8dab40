//! Whether two processes find each other, whoever their users are: in the folder that both name, or in /dev/shm.

use std::io::ErrorKind;
use std::path::Path;

use sanshim_core::registry;
use sanshim_core::sys::mounts;

use super::sharing::ComparedSide;
use crate::output::printable;

const SHARED_MEMORY: &str = "/dev/shm";

/// Fails with what keeps them apart, or with the reason why `sanctl` cannot tell.
pub(super) fn meet(one: &ComparedSide, other: &ComparedSide, both: &str) -> Result<(), String> {
    let apart = |why: String| Err(format!("{both} share no memory: {why}"));
    let [named, other_named] = [one, other].map(|side| side.admitted.folder.as_deref());
    let may_cross = named.is_some() && other_named.is_some();
    if !may_cross && !registry::share_namespace("net", one.pid, other.pid) {
        return apart(format!(
            "they are in different network namespaces; mount one folder into both, and {}",
            name_it(named.or(other_named), &lacking(one, other))
        ));
    }
    let has_none = named.is_none() && other_named.is_none();
    let [here, there] = match [place(one), place(other)] {
        [Ok(here), Ok(there)] => [here, there],
        // As each has it that says nothing else.
        [..] if has_none => return Ok(()),
        [Err(why), _] | [_, Err(why)] if why.is_certain => return apart(why.text),
        [Err(why), _] | [_, Err(why)] => {
            return Err(format!("whether {both} meet cannot be told: {}", why.text))
        }
    };
    if here == there {
        return Ok(());
    }
    if has_none {
        return apart("each has a /dev/shm of its own; mount one in both".to_owned());
    }
    let (path, other_path) = (path(one), path(other));
    if path == other_path {
        return apart(format!("each has a {} of its own; mount one in both", shown(path)));
    }
    let where_each = format!(
        "{} meets others in {}, {} in {}",
        one.who,
        shown(path),
        other.who,
        shown(other_path)
    );
    let mount = match registry::share_namespace("mnt", one.pid, other.pid) {
        true => "",
        false => "mount one folder into both, and ",
    };
    let named = named.or(other_named);
    apart(format!("{where_each}; {mount}{}", name_it(named, &lacking(one, other))))
}

/// The line that has these name that folder. The variable goes before the rules file.
fn name_it(folder: Option<&Path>, sides: &[&ComparedSide]) -> String {
    let folder = folder.map_or_else(|| "/run/sanshim".to_owned(), shown);
    let who: Vec<_> = sides.iter().map(|side| side.who.as_str()).collect();
    let running = sides.iter().filter(|side| side.pid.is_some());
    let restart: Vec<_> = running.map(|side| side.who.as_str()).collect();
    let then = if restart.is_empty() { "" } else { ", and restart " };
    let restart = restart.join(" and ");
    format!("set SANSHIM_FOLDER={folder} for {}{then}{restart}", who.join(" and "))
}

/// The sides that have to name a folder: those that name none, or the second, so that it names the other one's.
fn lacking<'a>(one: &'a ComparedSide, other: &'a ComparedSide) -> Vec<&'a ComparedSide> {
    let none = |side: &&ComparedSide| side.admitted.folder.is_none();
    let lacking: Vec<_> = [one, other].into_iter().filter(none).collect();
    if lacking.is_empty() {
        vec![other]
    } else {
        lacking
    }
}

fn path(side: &ComparedSide) -> &Path {
    side.admitted.folder.as_deref().unwrap_or(SHARED_MEMORY.as_ref())
}

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// Why it is not known where a side meets others.
struct Unknown {
    /// It surely meets no process there.
    is_certain: bool,
    text: String,
}

/// Device and inode of where a side meets others. A file system of the network is not looked at: it may not answer.
fn place(side: &ComparedSide) -> Result<(u64, u64), Unknown> {
    let path = path(side);
    let of = format!("the folder {} of {}", shown(path), side.who);
    if let Some(kind) = mounts::remote_kind(side.pid, path) {
        let text =
            format!("{of} is on {kind}, which is not of this host alone; name one of a tmpfs");
        return Err(Unknown { is_certain: true, text });
    }
    registry::identity_of(side.pid, path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Unknown { is_certain: true, text: format!("{of} is missing; make it") }
        }
        _ if error.raw_os_error() == Some(libc::ELOOP) => {
            let text = format!("{of} is reached by a symbolic link; name the folder itself");
            Unknown { is_certain: false, text }
        }
        _ => Unknown { is_certain: false, text: format!("{of}: {error}; ask as root") },
    })
}
