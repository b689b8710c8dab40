//! The program that an exec runs: whether it loads this library, and so can go on with what this
//! process has on the SAN.
//!
//! Every doubt is a no: a program without the library would take doorbells for data.

use crate::executable::{examine, resolve, Verdict};
use crate::sys::user::{self, Access};
use crate::sys::{file, process, Errno};
use std::ffi::{c_char, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The library of this process.
struct Library {
    /// Device and inode.
    identity: (u64, u64),
    /// LD_PRELOAD when it was loaded.
    preload: Vec<u8>,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Notes, when the library is loaded, which file it is.
pub fn note_library(path: &CStr) {
    let Ok(fd) = file::open_to_read(path) else { return };
    let identity = file::identity(fd);
    file::close(fd);
    let preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    if let Ok(identity) = identity {
        let _ = LIBRARY.set(Library { identity, preload: preload.as_bytes().to_vec() });
    }
}

/// See the module.
pub struct Program {
    file: Option<PathBuf>,
    environment: *const *const c_char,
}

impl Program {
    /// One that nothing is known of.
    pub const UNKNOWN: Program = Program { file: None, environment: std::ptr::null() };

    /// The one in the file `path`.
    ///
    /// # Safety
    /// The program's own arguments: what can be read of them is as exec wants it.
    pub unsafe fn at(path: *const c_char, environment: *const *const c_char) -> Program {
        // SAFETY: the caller's promise.
        let file = unsafe { text(path) }.map(|path| PathBuf::from(OsStr::from_bytes(path)));
        Program { file, environment }
    }

    /// The one that the name leads to by this process's PATH.
    ///
    /// # Safety
    /// As [`Program::at`].
    pub unsafe fn named(name: *const c_char, environment: *const *const c_char) -> Program {
        // SAFETY: the caller's promise; getenv's result is used at once.
        let folders = unsafe { text(libc::getenv(c"PATH".as_ptr())) };
        let folders = folders.map(|folders| OsStr::from_bytes(folders).to_owned());
        // SAFETY: the caller's promise.
        let name = unsafe { text(name) }.map(OsStr::from_bytes);
        let file = name.map(|name| resolve(name, folders).unwrap_or_else(|| PathBuf::from(name)));
        Program { file, environment }
    }

    /// True if its path does not depend on the current folder.
    pub fn is_absolute(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.is_absolute())
    }

    /// True if there is no such file, so that the exec will fail.
    pub(in crate::switch) fn is_missing(&self) -> bool {
        let missing = |path: CString| {
            matches!(
                file::open_to_read(&path).inspect(|fd| file::close(*fd)),
                Err(Errno(libc::ENOENT | libc::ENOTDIR))
            )
        };
        self.file
            .as_ref()
            .and_then(|file| CString::new(file.as_os_str().as_bytes()).ok())
            .is_some_and(missing)
    }

    /// True if it loads this library, and the library works there as it does here.
    pub(in crate::switch) fn loads_library(&self) -> bool {
        let (Some(library), Some(file)) = (LIBRARY.get(), &self.file) else { return false };
        // SAFETY: the program's own environment, as exec wants it.
        let preloaded = unsafe { is_preloaded(library, self.environment) };
        preloaded && !is_secure() && examine(file, false) == Verdict::Loads
    }
}

/// A string of the program's; `None` if it cannot be read.
unsafe fn text<'a>(at: *const c_char) -> Option<&'a [u8]> {
    user::check(at.cast(), 1, Access::Read).ok()?;
    // SAFETY: readable, and the caller's promise that it ends.
    Some(unsafe { CStr::from_ptr(at) }.to_bytes())
}

/// True if the environment names the library where it comes before libc and everything that our own
/// did not have.
unsafe fn is_preloaded(library: &Library, environment: *const *const c_char) -> bool {
    let mut preload = None;
    let mut at = environment;
    loop {
        if user::check(at.cast(), size_of::<*const c_char>(), Access::Read).is_err() {
            return false;
        }
        // SAFETY: readable, and the caller's promise.
        let one = unsafe { at.read_unaligned() };
        if one.is_null() {
            break;
        }
        // SAFETY: as above.
        let Some(one) = (unsafe { text(one) }) else { return false };
        if let Some(value) = one.strip_prefix(b"LD_PRELOAD=") {
            if preload.replace(value).is_some() {
                return false;
            }
        }
        // SAFETY: the array goes on until a null pointer.
        at = unsafe { at.add(1) };
    }
    let Some(preload) = preload else { return false };
    let mut entries = preload.split(|b| b": \t\n".contains(b)).filter(|entry| !entry.is_empty());
    if preload == library.preload {
        entries.any(|entry| library.is_at(entry))
    } else {
        entries.next().is_some_and(|entry| library.is_at(entry))
    }
}

impl Library {
    fn is_at(&self, path: &[u8]) -> bool {
        // Relative ones depend on where the program is, names on the loader's search.
        let Some(path) = CString::new(path).ok().filter(|_| path.starts_with(b"/")) else {
            return false;
        };
        let Ok(fd) = file::open_to_read(&path) else { return false };
        let identity = file::identity(fd);
        file::close(fd);
        identity == Ok(self.identity)
    }
}

/// True if this process's rights make the loader ignore LD_PRELOAD (AT_SECURE), or may.
fn is_secure() -> bool {
    let ([user, effective_user, _], [group, effective_group, _]) = process::users_and_groups();
    user != effective_user || group != effective_group || is_confined()
}

/// True if a security module watches this process, which may change its rights over exec.
fn is_confined() -> bool {
    let path = Path::new("/proc/self/attr/current");
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return true };
    let Ok(fd) = file::open_to_read(&path) else { return false };
    let mut label = [0u8; 16];
    // An error: there is no such module.
    let read = file::read(fd, label.as_mut_ptr(), label.len()).unwrap_or(0);
    file::close(fd);
    read != 0 && !label.starts_with(b"unconfined")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preloaded(library: &Library, environment: &[&str]) -> bool {
        let all: Vec<_> = environment.iter().map(|one| CString::new(*one).unwrap()).collect();
        let end = std::iter::once(std::ptr::null());
        let all: Vec<_> = all.iter().map(|one| one.as_ptr()).chain(end).collect();
        // SAFETY: a null-terminated array of strings.
        unsafe { is_preloaded(library, all.as_ptr()) }
    }

    #[test]
    fn only_an_environment_that_loads_this_very_file_does() {
        let itself = "/proc/self/exe";
        let fd = file::open_to_read(c"/proc/self/exe").unwrap();
        let identity = file::identity(fd).unwrap();
        file::close(fd);
        let library = Library { identity, preload: b"/bin/sh /proc/self/exe".to_vec() };
        let with = |value: &str| preloaded(&library, &["A=b", &format!("LD_PRELOAD={value}")]);
        assert!(with(itself));
        assert!(with(&format!("{itself}:/bin/sh")));
        assert!(with("/bin/sh /proc/self/exe"));
        assert!(!with(&format!("/bin/cat:{itself}")), "another library before it");
        assert!(!with("/bin/sh"));
        assert!(!with("proc/self/exe"));
        assert!(!with(""));
        assert!(!preloaded(&library, &["A=b"]));
        assert!(!preloaded(&library, &["LD_PRELOAD=/proc/self/exe", "LD_PRELOAD=/proc/self/exe"]));
        // SAFETY: there is no environment to read.
        assert!(!unsafe { is_preloaded(&library, std::ptr::null()) });
    }
}
