//! Tells from a program's file whether the program would load a preloaded library.
//!
//! Makes raw system calls only, and keeps nothing, so that a vfork child may ask too.

use crate::sys::{file, process, Fd};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Scripts whose interpreters are scripts are followed so far, as the kernel does.
const SCRIPT_DEPTH: usize = 4;
/// The most program headers that are looked at, and the most bytes of notes.
const MOST_HEADERS: u16 = 256;
const MOST_NOTES: u64 = 4096;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// Whether the library would be in a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The loader that loaded this program loads it.
    Loads,
    /// It cannot be in the program.
    Cannot(Obstacle),
    /// It is no program, or not readable, or has another loader of the same kind. Only running it would tell.
    Unknown,
}

/// Why the library cannot be in a program, or sees nothing there.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It has no dynamic loader, so nobody reads LD_PRELOAD.
    Static,
    /// It runs with more rights than we have, so the loader ignores LD_PRELOAD.
    Privileged,
    /// It is built for another kind of machine, or for 32 bits.
    OtherMachine,
    /// It has the loader of another C library (musl), which would fail on the shim.
    OtherLibc(PathBuf),
    /// It is a Go program, which makes its system calls itself.
    OwnSystemCalls,
}

/// The file that would be run for the name `program`. A name with a slash is the file. Any other is looked up in
/// `folders`, which is PATH or its default.
pub fn resolve(program: &OsStr, folders: Option<OsString>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let folders = folders.unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|at| is_program(at))
}

fn is_program(path: &Path) -> bool {
    Opened::path(path).is_some_and(|opened| opened.is_file()) && file::is_executable(&c(path))
}

/// Whether the library would be in the program that runs when the file `path` is executed.
///
/// The kernel runs `env` if a script's first line says so. With `through_env` the answer is about the program that
/// `env` would run.
pub fn examine(path: &Path, through_env: bool) -> Verdict {
    examine_known(path, through_env).unwrap_or(Verdict::Unknown)
}

fn examine_known(path: &Path, through_env: bool) -> Option<Verdict> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPT_DEPTH {
        let opened = Opened::path(&path).filter(Opened::is_file)?;
        if let Some(interpreter) = interpreter_of_script(&opened, through_env) {
            // The kernel ignores the setuid bits of scripts.
            path = interpreter?;
            continue;
        }
        if is_privileged(&opened, &path) {
            return Some(Verdict::Cannot(Obstacle::Privileged));
        }
        let elf = Elf::read(&opened)?;
        let own = Elf::read(&Opened::path(Path::new("/proc/self/exe"))?)?;
        return Some(match (elf.loader, own.loader?) {
            _ if elf.kind != own.kind => Verdict::Cannot(Obstacle::OtherMachine),
            (None, _) => Verdict::Cannot(Obstacle::Static),
            (Some(loader), own) if loader.file_name() != own.file_name() => {
                Verdict::Cannot(Obstacle::OtherLibc(loader))
            }
            _ if elf.is_go => Verdict::Cannot(Obstacle::OwnSystemCalls),
            (Some(loader), own) if loader == own => Verdict::Loads,
            _ => Verdict::Unknown,
        });
    }
    None
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// `None` if it is no script. `Some(None)` if it is one whose interpreter is unknown.
fn interpreter_of_script(opened: &Opened, through_env: bool) -> Option<Option<PathBuf>> {
    let mut start = [0; 256];
    let length = opened.read(&mut start, 0);
    let line = start[..length].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let interpreter = words.next().map(|word| PathBuf::from(OsStr::from_bytes(word)));
    let is_env = interpreter.as_ref().is_some_and(|path| path.ends_with("bin/env"));
    if !is_env || !through_env {
        return Some(interpreter);
    }
    // In `env -S program` and `env NAME=value program` other words stand before the program.
    let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    let folders = std::env::var_os("PATH");
    Some(program.and_then(|name| resolve(OsStr::from_bytes(name), folders)))
}

/// True when the system would run the program in secure mode (AT_SECURE) because of its file.
fn is_privileged(opened: &Opened, path: &Path) -> bool {
    let ([user, ..], [group, ..]) = process::users_and_groups();
    let Ok(found) = file::stat(opened.0) else { return true };
    let setuid = found.st_mode & libc::S_ISUID != 0 && found.st_uid != user;
    let setgid = found.st_mode & libc::S_ISGID != 0 && found.st_gid != group;
    setuid || setgid || (user != 0 && file::has_attribute(&c(path), c"security.capability"))
}

/// A file open for reading.
struct Opened(Fd);

impl Opened {
    fn path(path: &Path) -> Option<Opened> {
        file::open_to_read(&c(path)).ok().map(Opened)
    }

    fn is_file(&self) -> bool {
        file::stat(self.0).is_ok_and(|s| s.st_mode & libc::S_IFMT == libc::S_IFREG)
    }

    /// Reads up to the end of the file. Gives the bytes read.
    fn read(&self, to: &mut [u8], offset: u64) -> usize {
        let mut read = 0;
        while read < to.len() {
            let Ok(at) = i64::try_from(offset.saturating_add(read as u64)) else { break };
            match file::pread(self.0, to[read..].as_mut_ptr(), to.len() - read, at) {
                Ok(n) if n > 0 => read += n,
                _ => break,
            }
        }
        read
    }

    /// Fills `to`. `None` if the file ends before.
    fn read_all(&self, to: &mut [u8], offset: u64) -> Option<()> {
        (self.read(to, offset) == to.len()).then_some(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        file::close(self.0);
    }
}

/// What is of interest in an ELF file.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    /// Class (32 or 64 bits), byte order, machine.
    kind: (u8, u8, u16),
    /// The dynamic loader.
    loader: Option<PathBuf>,
    is_go: bool,
}

impl Elf {
    /// `None` if it is no ELF file, or one that is cut off.
    fn read(opened: &Opened) -> Option<Elf> {
        let mut header = [0; 64];
        opened.read_all(&mut header[..52], 0)?;
        if !header.starts_with(b"\x7fELF") {
            return None;
        }
        let (class, order) = (header[4], header[5]);
        let kind = (class, order, u16::from_ne_bytes([header[18], header[19]]));
        let mut elf = Elf { kind, loader: None, is_go: false };
        let native_order = if cfg!(target_endian = "little") { 1 } else { 2 };
        if class != 2 || order != native_order {
            return Some(elf);
        }
        opened.read_all(&mut header, 0)?;
        let table = u64::from_ne_bytes(header[32..40].try_into().ok()?);
        let entry = u16::from_ne_bytes([header[54], header[55]]);
        let count = u16::from_ne_bytes([header[56], header[57]]).min(MOST_HEADERS);
        for index in 0..count {
            let offset = u64::from(entry) * u64::from(index);
            let mut program_header = [0; 56];
            opened.read_all(&mut program_header, table.checked_add(offset)?)?;
            let field =
                |at: usize| Some(u64::from_ne_bytes(program_header[at..at + 8].try_into().ok()?));
            let (at, size) = (field(8)?, field(32)?);
            match u32::from_ne_bytes(program_header[..4].try_into().ok()?) {
                PT_INTERP if elf.loader.is_none() => {
                    elf.loader = Some(read_string(opened, at, size)?);
                }
                PT_NOTE => elf.is_go |= has_note_of_go(opened, at, size),
                _ => {}
            }
        }
        Some(elf)
    }
}

/// A NUL-terminated path of at most `size` bytes.
fn read_string(opened: &Opened, offset: u64, size: u64) -> Option<PathBuf> {
    let mut bytes = vec![0; size.min(libc::PATH_MAX as u64) as usize];
    opened.read_all(&mut bytes, offset)?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    bytes.truncate(end);
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

/// Every Go linker leaves a note by this name.
fn has_note_of_go(opened: &Opened, offset: u64, size: u64) -> bool {
    let mut bytes = vec![0; size.min(MOST_NOTES) as usize];
    let length = opened.read(&mut bytes, offset);
    let mut rest = &bytes[..length];
    while let Some((head, after)) = rest.split_at_checked(12) {
        let word = |at: usize| {
            u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize
        };
        let (name, text) = (word(0).next_multiple_of(4), word(4).next_multiple_of(4));
        if after.starts_with(b"Go\0\0") && word(0) == 4 {
            return true;
        }
        let Some(next) = after.get(name.saturating_add(text)..) else { return false };
        rest = next;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sanshim-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn program(&self, name: &str, content: &[u8]) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn programs_are_told_apart() {
        let folder = Folder::new("apart");
        let itself = folder.program("itself", &own());
        assert_eq!(examine(&itself, false), Verdict::Loads);
        let mut other = own();
        other[18] ^= 1;
        let other = folder.program("other", &other);
        assert_eq!(examine(&other, false), Verdict::Cannot(Obstacle::OtherMachine));
        let mut musl = own();
        let name = b"ld-linux-x86-64.so.2";
        let at = musl.windows(name.len()).position(|w| w == name).unwrap();
        musl[at] = b'x';
        let musl = folder.program("musl", &musl);
        let verdict = examine(&musl, false);
        assert!(matches!(verdict, Verdict::Cannot(Obstacle::OtherLibc(_))), "{verdict:?}");
        let text = folder.program("text", b"echo no first line\n");
        assert_eq!(examine(&text, false), Verdict::Unknown);
        assert_eq!(examine(Path::new("/nowhere/none"), false), Verdict::Unknown);
    }

    /// A copy of this test's own executable, with its loader or its first note changed.
    #[test]
    fn programs_that_ignore_the_library_are_told_apart() {
        let folder = Folder::new("ignore");
        let mut program = own();
        let table = u64::from_ne_bytes(program[32..40].try_into().unwrap()) as usize;
        let entry = u16::from_ne_bytes(program[54..56].try_into().unwrap()) as usize;
        let count = u16::from_ne_bytes(program[56..58].try_into().unwrap()) as usize;
        let header = (table..).step_by(entry).take(count);
        let loader = header.into_iter().find(|&at| program[at..at + 4] == PT_INTERP.to_ne_bytes());
        program[loader.unwrap()..][..4].fill(0);
        let unlinked = folder.program("static", &program);
        assert_eq!(examine(&unlinked, false), Verdict::Cannot(Obstacle::Static));

        let mut program = own();
        let name = program.windows(4).position(|window| window == b"GNU\0").unwrap();
        program[name..name + 4].copy_from_slice(b"Go\0\0");
        let go = folder.program("go", &program);
        assert_eq!(examine(&go, false), Verdict::Cannot(Obstacle::OwnSystemCalls));
    }

    #[test]
    fn programs_with_other_rights_are_told_apart() {
        let folder = Folder::new("rights");
        let program = folder.program("program", &own());
        let of_another_user = |mode| {
            // The change of the owner takes the setuid bits away.
            std::os::unix::fs::chown(&program, Some(1), Some(1))?;
            std::fs::set_permissions(&program, PermissionsExt::from_mode(mode))
        };
        if let Err(e) = of_another_user(0o755) {
            eprintln!("skipped: a program of another user needs root: {e}");
            return;
        }
        assert_eq!(examine(&program, false), Verdict::Loads);
        for mode in [0o4755, 0o2755] {
            of_another_user(mode).unwrap();
            assert_eq!(examine(&program, false), Verdict::Cannot(Obstacle::Privileged), "{mode:o}");
        }
    }

    #[test]
    fn scripts_are_what_interprets_them() {
        let folder = Folder::new("scripts");
        let itself = folder.program("interpreter", &own());
        let script = format!("#! {} -x\n", itself.display());
        let script = folder.program("script", script.as_bytes());
        assert_eq!(examine(&script, false), Verdict::Loads);
        let circle = folder.program("circle", b"");
        std::fs::write(&circle, format!("#!{}\n", circle.display())).unwrap();
        assert_eq!(examine(&circle, false), Verdict::Unknown);
        let through = folder.program("through", b"#!/usr/bin/env nowhere-to-be-found\n");
        assert_eq!(examine(&through, true), Verdict::Unknown);
        assert_eq!(examine(&through, false), Verdict::Loads);
    }

    #[test]
    fn go_is_recognised_by_its_note() {
        let folder = Folder::new("go");
        let mut note = Vec::new();
        for (name, text) in [(&b"GNU\0"[..], &b"abcd"[..]), (b"Go\0\0", b"build")] {
            note.extend((name.len() as u32).to_ne_bytes());
            note.extend((text.len() as u32).to_ne_bytes());
            note.extend(4u32.to_ne_bytes());
            note.extend(name);
            note.extend(text);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        let path = folder.program("note", &note);
        let opened = Opened::path(&path).unwrap();
        assert!(has_note_of_go(&opened, 0, note.len() as u64));
        assert!(!has_note_of_go(&opened, 0, 20));
        note[0] = 0xff;
        note[1] = 0xff;
        let path = folder.program("broken", &note);
        assert!(!has_note_of_go(&Opened::path(&path).unwrap(), 0, note.len() as u64));
    }
}
