//! Finding libsanshim.so.

use crate::output::printable;
use crate::runtime;
use object::{Object, ObjectSection, ReadCache};
use sanshim_core::label::{self, Label};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::{env, fs};

const NAME: &str = "libsanshim.so";
/// Where the library may be, seen from the folder that sanctl is in.
const PLACES: [&str; 3] = [".", "../lib", "../lib/sanshim"];

/// The library's absolute path: `$SANSHIM_LIBRARY`, or near this program.
///
/// # Errors
/// One line that says where it was looked for, or why it cannot be named in LD_PRELOAD.
pub(crate) fn find() -> Result<PathBuf, String> {
    let library = match env::var_os("SANSHIM_LIBRARY").filter(|value| !value.is_empty()) {
        Some(named) => fs::canonicalize(&named).map_err(|error| {
            let named = Path::new(&named).display();
            format!("SANSHIM_LIBRARY={named}: {error}; name {NAME} or unset it")
        })?,
        None => find_near_program()?,
    };
    if library.as_os_str().as_bytes().iter().any(|&byte| byte == b':' || is_space(byte)) {
        // ld.so takes both characters for separators, and knows no escape.
        let shown = library.display();
        return Err(format!(
            "{shown}: LD_PRELOAD cannot hold a path with spaces or colons; move it"
        ));
    }
    Ok(library)
}

/// Checks that this `sanctl` can show programs under the library.
///
/// # Errors
/// One line that says why not, and what to do.
pub(crate) fn check_fits(library: &Path) -> Result<(), String> {
    let shown = library.display();
    let file = fs::File::open(library).map_err(|error| format!("{shown}: {error}"))?;
    let parts = ReadCache::new(file);
    let file = object::File::parse(&parts)
        .map_err(|error| format!("{shown} cannot be preloaded: {error}; install {NAME} again"))?;
    let section = file.section_by_name(label::SECTION).and_then(|section| section.data().ok());
    match section.and_then(Label::parse) {
        Some(label) if label.fits() => Ok(()),
        Some(label) => Err(format!(
            "{shown} is of version {}, this sanctl of {}; use those that were installed together",
            printable(&label.version),
            env!("CARGO_PKG_VERSION")
        )),
        None => Err(format!("{shown} is not sanshim's; name {NAME} or install it again")),
    }
}

fn find_near_program() -> Result<PathBuf, String> {
    let program = env::current_exe().map_err(|error| format!("cannot find sanctl: {error}"))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let found =
        PLACES.iter().find_map(|place| fs::canonicalize(folder.join(place).join(NAME)).ok());
    found.ok_or_else(|| {
        let places = PLACES.map(|place| folder.join(place).display().to_string()).join(", ");
        format!("no {NAME} in {places}; install it there or set SANSHIM_LIBRARY")
    })
}

/// The value of LD_PRELOAD with the library in front of what `existing` names, and behind a `runtime` that the program needs
/// in front of all.
pub(crate) fn preload(
    library: &Path,
    runtime: Option<&OsStr>,
    existing: Option<&OsStr>,
) -> OsString {
    let ours = library.as_os_str().as_bytes();
    let existing = existing.unwrap_or_default().as_bytes();
    let existing = existing.split(|&byte| byte == b':' || is_space(byte));
    let others: Vec<_> = existing.filter(|other| !other.is_empty() && *other != ours).collect();
    let (mut first, behind): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|other| runtime::comes_first(other));
    if first.is_empty() {
        first.extend(runtime.map(OsStrExt::as_bytes));
    }
    OsString::from_vec([first, vec![ours], behind].concat().join(&b':'))
}

fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_preload_is_kept_behind_ours() {
        let library = Path::new("/x/libsanshim.so");
        let cases = [
            (None, "/x/libsanshim.so"),
            (Some(""), "/x/libsanshim.so"),
            (Some("/a.so"), "/x/libsanshim.so:/a.so"),
            (Some("/a.so b.so:/c.so"), "/x/libsanshim.so:/a.so:b.so:/c.so"),
            (Some("/x/libsanshim.so"), "/x/libsanshim.so"),
            (Some("/a.so:/x/libsanshim.so"), "/x/libsanshim.so:/a.so"),
        ];
        for (existing, expected) in cases {
            assert_eq!(preload(library, None, existing.map(OsStr::new)), expected, "{existing:?}");
        }
    }

    #[test]
    fn a_runtime_that_comes_first_is_in_front_of_ours() {
        let library = Path::new("/x/libsanshim.so");
        let cases = [
            (Some("libasan.so.8"), None, "libasan.so.8:/x/libsanshim.so"),
            (Some("libasan.so.8"), Some("/a.so"), "libasan.so.8:/x/libsanshim.so:/a.so"),
            (Some("libasan.so.8"), Some("/y/libasan.so.6"), "/y/libasan.so.6:/x/libsanshim.so"),
            (None, Some("/a.so:libasan.so.8"), "libasan.so.8:/x/libsanshim.so:/a.so"),
        ];
        for (runtime, existing, expected) in cases {
            let value = preload(library, runtime.map(OsStr::new), existing.map(OsStr::new));
            assert_eq!(value, expected, "{runtime:?} {existing:?}");
        }
    }
}
