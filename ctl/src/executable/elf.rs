//! What of an ELF file tells whether it would load a preloaded library.

use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::read::Result;
use object::{Endianness, FileKind, ReadRef};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What is of interest in an ELF file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// Class (32 or 64 bits), byte order, number of the machine.
    pub(crate) machine: (FileKind, Endianness, u16),
    /// The dynamic loader.
    pub(crate) loader: Option<PathBuf>,
    /// True for a program of a Go linker: each leaves a note by that name.
    pub(crate) is_go: bool,
}

impl Elf {
    /// Takes any bytes.
    ///
    /// # Errors
    /// The bytes are no ELF file, or one that is cut off.
    pub(crate) fn parse<'data>(data: impl ReadRef<'data>) -> Result<Elf> {
        match FileKind::parse(data)? {
            FileKind::Elf32 => Self::of::<FileHeader32<Endianness>>(FileKind::Elf32, data),
            _ => Self::of::<FileHeader64<Endianness>>(FileKind::Elf64, data),
        }
    }

    fn of<'data, H: FileHeader<Endian = Endianness>>(
        class: FileKind,
        data: impl ReadRef<'data>,
    ) -> Result<Elf> {
        let header = H::parse(data)?;
        let endian = header.endian()?;
        let mut elf =
            Elf { machine: (class, endian, header.e_machine(endian)), loader: None, is_go: false };
        for part in header.program_headers(endian, data)? {
            if let Some(loader) = part.interpreter(endian, data)? {
                elf.loader = Some(PathBuf::from(OsStr::from_bytes(loader)));
            }
            // Other notes may be as they like, broken too.
            let notes = part.notes(endian, data).ok().flatten();
            elf.is_go |= notes.into_iter().flatten().flatten().any(|note| note.name() == b"Go");
        }
        Ok(elf)
    }
}
