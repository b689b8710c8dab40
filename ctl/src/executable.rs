//! Whether a program can be preloaded, told from its file.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::output::printable;

/// Scripts whose interpreters are scripts are followed this far, as the kernel does.
const SCRIPT_DEPTH: usize = 4;
/// The most program headers that are looked at.
const MOST_HEADERS: u16 = 256;
const PT_INTERP: u32 = 3;

/// Why the shim cannot enter a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// No dynamic loader, so nobody reads LD_PRELOAD.
    Static,
    /// Runs with more rights than we have, so the loader ignores LD_PRELOAD.
    Privileged,
    /// Built for another kind of machine, or for 32 bits.
    OtherMachine,
    /// The loader of another C library (musl), which would fail on the shim.
    OtherLibc(PathBuf),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Static => f.write_str(
                "it is statically linked and cannot be preloaded; use a dynamically linked build",
            ),
            Obstacle::Privileged => f.write_str(
                "it is setuid, setgid or has capabilities, so the system ignores LD_PRELOAD; start \
                 it as the user it changes to",
            ),
            Obstacle::OtherMachine => f.write_str(
                "it is built for another machine type than the shim; use a build for this one",
            ),
            Obstacle::OtherLibc(loader) => write!(
                f,
                "its C library is not glibc (loader {}); use a glibc build",
                printable(&loader.to_string_lossy())
            ),
        }
    }
}

/// The file that running `program` would run: itself if it has a slash, else from PATH.
pub(crate) fn resolve(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    let Ok(name) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: a NUL-terminated path.
    file.is_file() && unsafe { libc::access(name.as_ptr(), libc::X_OK) } == 0
}

/// What keeps the shim out of the program in this file. `None` too for what is no program or
/// cannot be read: running it will tell.
pub(crate) fn obstacle(file: &Path) -> Option<Obstacle> {
    let mut file = file.to_owned();
    for _ in 0..SCRIPT_DEPTH {
        let opened = File::open(&file).ok()?;
        if let Some(interpreter) = interpreter_of_script(&opened) {
            // The kernel ignores the setuid bits of scripts.
            file = interpreter?;
            continue;
        }
        if is_privileged(&opened, &file) {
            return Some(Obstacle::Privileged);
        }
        let elf = Elf::read(&opened)?;
        let own = Elf::read(&File::open("/proc/self/exe").ok()?)?;
        return match elf.loader {
            _ if elf.kind != own.kind => Some(Obstacle::OtherMachine),
            None => Some(Obstacle::Static),
            Some(loader) if loader.file_name() != own.loader?.file_name() => {
                Some(Obstacle::OtherLibc(loader))
            }
            Some(_) => None,
        };
    }
    None
}

/// `None`: no script. `Some(None)`: a script whose interpreter is unknown.
fn interpreter_of_script(file: &File) -> Option<Option<PathBuf>> {
    let mut start = [0; 256];
    let length = file.read_at(&mut start, 0).ok()?;
    let line = start[..length].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let interpreter = words.next().map(|word| PathBuf::from(OsStr::from_bytes(word)));
    let is_env = interpreter.as_ref().is_some_and(|path| path.ends_with("bin/env"));
    if !is_env {
        return Some(interpreter);
    }
    // `env -S program` and `env NAME=value program` name the program further on.
    let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    Some(program.and_then(|name| resolve(OsStr::from_bytes(name))))
}

/// True when the system would run the program in secure mode (AT_SECURE).
fn is_privileged(file: &File, path: &Path) -> bool {
    let Ok(found) = file.metadata() else { return false };
    // SAFETY: no memory is involved.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let setuid = found.mode() & libc::S_ISUID != 0 && found.uid() != user;
    let setgid = found.mode() & libc::S_ISGID != 0 && found.gid() != group;
    setuid || setgid || (user != 0 && has_capabilities(path))
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().to_owned().into_vec()) else { return false };
    let name = c"security.capability";
    // SAFETY: NUL-terminated strings; size 0 asks for the size alone.
    let size = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    size > 0
}

/// What matters of an ELF file.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    /// Class (32 or 64 bits), byte order, machine.
    kind: (u8, u8, u16),
    /// The dynamic loader.
    loader: Option<PathBuf>,
}

impl Elf {
    /// `None` for what is no ELF file or is cut off.
    fn read(file: &File) -> Option<Elf> {
        let mut header = [0; 64];
        file.read_exact_at(&mut header[..52], 0).ok()?;
        if !header.starts_with(b"\x7fELF") {
            return None;
        }
        let (class, order) = (header[4], header[5]);
        let kind = (class, order, u16::from_ne_bytes([header[18], header[19]]));
        let native_order = if cfg!(target_endian = "little") { 1 } else { 2 };
        if class != 2 || order != native_order {
            return Some(Elf { kind, loader: None });
        }
        file.read_exact_at(&mut header, 0).ok()?;
        let table = u64::from_ne_bytes(header[32..40].try_into().ok()?);
        let entry = u16::from_ne_bytes([header[54], header[55]]);
        let count = u16::from_ne_bytes([header[56], header[57]]).min(MOST_HEADERS);
        for index in 0..count {
            let offset = u64::from(entry) * u64::from(index);
            let mut program_header = [0; 56];
            file.read_exact_at(&mut program_header, table.checked_add(offset)?).ok()?;
            let field =
                |at: usize| Some(u64::from_ne_bytes(program_header[at..at + 8].try_into().ok()?));
            if u32::from_ne_bytes(program_header[..4].try_into().ok()?) == PT_INTERP {
                let loader = read_string(file, field(8)?, field(32)?)?;
                return Some(Elf { kind, loader: Some(loader) });
            }
        }
        Some(Elf { kind, loader: None })
    }
}

/// A NUL-terminated path of at most `size` bytes.
fn read_string(file: &File, offset: u64, size: u64) -> Option<PathBuf> {
    let mut bytes = vec![0; size.min(libc::PATH_MAX as u64) as usize];
    file.read_exact_at(&mut bytes, offset).ok()?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    bytes.truncate(end);
    Some(PathBuf::from(OsString::from_vec(bytes)))
}
