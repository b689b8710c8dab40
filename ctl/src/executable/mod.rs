//! Tells from a program's file whether the program would load a preloaded library. It never runs the program.

mod elf;

use elf::Elf;
use object::ReadCache;
use rustix::fs::Access;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How many scripts whose interpreters are scripts `sanctl` follows, as the kernel does.
const SCRIPT_DEPTH: usize = 4;
/// So many bytes of a script's start are looked at for its first line.
const FIRST_LINE: u64 = 256;

/// Whether the library would be in a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The loader that loaded this program loads it.
    Loads,
    /// It cannot be in the program.
    Cannot(Obstacle),
    /// It is no program, or not readable, or has another loader of the same kind. Only running it would tell.
    Unknown,
}

/// Why the library cannot be in a program, or sees nothing there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It has no dynamic loader, so nothing reads LD_PRELOAD.
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
pub(crate) fn resolve(program: &OsStr, folders: Option<OsString>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let folders = folders.unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|at| is_program(at))
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// Whether the library would be in the program that runs when the file `path` is executed.
///
/// The kernel runs `env` if a script's first line says so. With `through_env` the answer is about the program that
/// `env` would run.
pub(crate) fn examine(path: &Path, through_env: bool) -> Verdict {
    examine_known(path, through_env).unwrap_or(Verdict::Unknown)
}

fn examine_known(path: &Path, through_env: bool) -> Option<Verdict> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPT_DEPTH {
        let file = open(&path)?;
        if let Some(interpreter) = interpreter_of_script(&file, through_env) {
            // The kernel ignores the setuid bits of scripts.
            path = interpreter?;
            continue;
        }
        if is_privileged(&file, &path)? {
            return Some(Verdict::Cannot(Obstacle::Privileged));
        }
        let (elf, own) = (read(file)?, read(open(Path::new("/proc/self/exe"))?)?);
        return Some(match (elf.loader, own.loader?) {
            _ if elf.machine != own.machine => Verdict::Cannot(Obstacle::OtherMachine),
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

/// `None` for what is no file. Does not wait for the writer of a pipe.
fn open(path: &Path) -> Option<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().is_ok_and(|found| found.is_file()).then_some(file)
}

fn read(file: File) -> Option<Elf> {
    Elf::parse(&ReadCache::new(file)).ok()
}

/// `None` if it is no script. `Some(None)` if it is one whose interpreter is unknown.
fn interpreter_of_script(file: &File, through_env: bool) -> Option<Option<PathBuf>> {
    let mut start = Vec::new();
    file.take(FIRST_LINE).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
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
fn is_privileged(file: &File, path: &Path) -> Option<bool> {
    let (found, user) = (file.metadata().ok()?, rustix::process::getuid());
    let setuid = found.mode() & libc::S_ISUID != 0 && found.uid() != user.as_raw();
    let setgid =
        found.mode() & libc::S_ISGID != 0 && found.gid() != rustix::process::getgid().as_raw();
    let capabilities = || rustix::fs::getxattr(path, "security.capability", &mut [0; 0]).is_ok();
    Some(setuid || setgid || (!user.is_root() && capabilities()))
}

#[cfg(test)]
#[path = "../../../core/src/fuzzing/seeds.rs"]
mod seeds;

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
        let loader = header
            .into_iter()
            .find(|&at| program[at..at + 4] == object::elf::PT_INTERP.to_ne_bytes());
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
    fn inputs_that_were_kept_are_right() {
        assert!(seeds::each("programs", |data| drop(Elf::parse(data))) > 0);
    }
}
