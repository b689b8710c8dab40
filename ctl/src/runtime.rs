//! Runtimes that end a program which has another library in front of them: that of AddressSanitizer as gcc links it.

use object::elf::{FileHeader64, DT_NEEDED};
use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, ReadCache};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The name of the runtime that a program needs in front of all libraries, if it needs one.
pub(crate) fn that_comes_first(program: &Path) -> Option<OsString> {
    let parts = ReadCache::new(fs::File::open(program).ok()?);
    let header = FileHeader64::<Endianness>::parse(&parts).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &parts).ok()?;
    let (entries, names) = sections.dynamic(endian, &parts).ok()??;
    let names = sections.strings(endian, &parts, names).ok()?;
    let needed = entries.iter().filter(|entry| entry.tag32(endian) == Some(DT_NEEDED));
    let mut needed = needed.filter_map(|entry| names.get(entry.val32(endian)?).ok());
    needed.find(|name| comes_first(name)).map(|name| OsString::from_vec(name.to_vec()))
}

/// True of a library that has to be in front, by its name or path.
pub(crate) fn comes_first(library: &[u8]) -> bool {
    let name = Path::new(OsStr::from_bytes(library)).file_name();
    name.is_some_and(|name| name.as_bytes().starts_with(b"libasan.so"))
}
