//! The folder in which the processes of one user have all their names: registry files, tables of entries, offer
//! sockets.
//!
//! Any user may make names in shared memory. So a name says nothing: a folder is a user's if it belongs to that user.
//! Where somebody else took the usual name, the folder has another one, and a process that looks for it takes what
//! belongs to its user. Nobody else makes or removes names in the folder. A file system that somebody mounted there is
//! no folder of anybody's: a program may serve it, which says to whom it belongs, and need not answer. A number means
//! one user only in the initial user namespace. In another one all users without a number of their own have the same
//! number, and have no folder.

use super::folder::{Known, OpenedPath};
use super::{file, folder, process, Errno, Fd, Result};
use std::ffi::CStr;
use std::fmt::Write;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Where the kernel keeps named shared memory.
pub(crate) const SHARED_MEMORY: &CStr = c"/dev/shm";
/// Folders there have this in front of the user's number as their name.
pub(crate) const PREFIX: &str = "sanshim-user-";
/// Others find in it what they know the name of, and that may be theirs to open.
pub(crate) const MODE: u32 = 0o711;
/// So many names in shared memory are looked at: others may make any number of them.
const MOST_NAMES: u32 = 1024;
/// The longest path of a folder, with the zero behind it.
const LONGEST: usize = 96;
const TOO_LONG: Errno = Errno(libc::ENAMETOOLONG);

/// Where a user's folder is. Allocates nothing.
#[derive(Clone, Copy)]
pub(crate) struct UserFolder {
    path: [u8; LONGEST],
    length: usize,
}

impl Write for UserFolder {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        // A zero stays behind it.
        let place = self.path[..LONGEST - 1].get_mut(self.length..end).ok_or(std::fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

impl UserFolder {
    /// The folder of that user, if he has one.
    pub(crate) fn find(uid: u32) -> Option<UserFolder> {
        Self::find_in(SHARED_MEMORY, uid)
    }

    /// This process's user's, which is made if it is missing.
    ///
    /// # Errors
    /// EOVERFLOW if the user has no number in this user namespace; the kernel's where no folder can be made.
    pub(crate) fn make() -> Result<UserFolder> {
        Self::make_in(SHARED_MEMORY)
    }

    /// The same in another place than shared memory.
    ///
    /// # Errors
    /// As [`make`](Self::make); ENAMETOOLONG where the path does not fit.
    pub(crate) fn make_in(base: &CStr) -> Result<UserFolder> {
        let uid = process::euid();
        if !is_one_user(uid) {
            return Err(Errno(libc::EOVERFLOW));
        }
        Self::make_of(base, uid)
    }

    /// Its path.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.path).unwrap_or_default()
    }

    /// Its path.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.path[..self.length]).unwrap_or_default()
    }

    fn of(base: &CStr, name: std::fmt::Arguments<'_>) -> Option<UserFolder> {
        let mut of = UserFolder { path: [0; LONGEST], length: 0 };
        let base = base.to_str().ok()?;
        write!(of, "{base}/{PREFIX}{name}").ok()?;
        Some(of)
    }

    /// The same in another place than shared memory.
    pub(crate) fn find_in(base: &CStr, uid: u32) -> Option<UserFolder> {
        let usual = Self::of(base, format_args!("{uid}"))?;
        let device = Known::of_named(base).ok()?.device;
        if usual.is_of(uid, device) {
            return Some(usual);
        }
        let (mut found, mut names): (Option<UserFolder>, u32) = (None, 0);
        let opened = folder::open(base).ok()?;
        let _ = folder::each_name_while(opened, |name| {
            names += 1;
            let text = name.to_str().ok().and_then(|name| name.strip_prefix(PREFIX));
            let other = text.filter(|text| user_in(text) == Some(uid));
            let other = other.and_then(|text| Self::of(base, format_args!("{text}")));
            // Every process that looks takes the same.
            let is_first = |one: &UserFolder| found.is_none_or(|first| one.path < first.path);
            found = other.filter(|one| is_first(one) && one.is_of(uid, device)).or(found);
            names < MOST_NAMES
        });
        file::close(opened);
        found
    }

    fn make_of(base: &CStr, uid: u32) -> Result<UserFolder> {
        let found = || Self::find_in(base, uid);
        if found().is_none() {
            let usual = Self::of(base, format_args!("{uid}")).ok_or(TOO_LONG)?;
            let made = match folder::make(usual.as_c_str(), MODE) {
                // Another process of this user was faster, or another user took the name.
                Err(Errno(libc::EEXIST)) if found().is_none() => {
                    let [number, _] = process::random();
                    let other = Self::of(base, format_args!("{uid}.{number:016x}"));
                    folder::make(other.ok_or(TOO_LONG)?.as_c_str(), MODE)
                }
                made => made,
            };
            made.or_else(|e| if e == Errno(libc::EEXIST) { Ok(()) } else { Err(e) })?;
        }
        let folder = found().ok_or(Errno(libc::EPERM))?;
        // The umask may have taken bits away, and it may be a library's that came before.
        if Known::of(folder.as_c_str())?.mode & 0o777 != MODE {
            folder.set_mode(uid)?;
        }
        Ok(folder)
    }

    /// Sets its mode, if it is that user's. A process of the user's in a container may have put a link in its place since.
    fn set_mode(&self, uid: u32) -> Result<()> {
        let opened = self.open_below("", libc::O_PATH)?;
        let is_its = |it: libc::stat| folder::is_private(it.st_mode, it.st_uid, uid);
        let set = match file::stat(opened).is_ok_and(is_its) {
            true => file::set_mode_of(OpenedPath::of(opened).as_c_str(), MODE),
            false => Err(Errno(libc::EPERM)),
        };
        file::close(opened);
        set
    }

    /// True if only that user makes and removes names in it, and it lies in the file system of that device.
    fn is_of(&self, uid: u32, device: (u32, u32)) -> bool {
        Known::of(self.as_c_str()).is_ok_and(|it| it.device == device && it.is_private(uid))
    }

    /// Opens what has that name in it, as [`folder::open_within`] does: it may be another user's folder.
    pub(crate) fn open_name(&self, name: &CStr, flags: i32) -> Result<Fd> {
        self.open_below(name.to_str().map_err(|_| TOO_LONG)?, flags)
    }

    /// The same of a name below it. The empty name: the folder itself, for which it need give no rights.
    fn open_below(&self, name: &str, flags: i32) -> Result<Fd> {
        let (above, own) = self.as_str().rsplit_once('/').ok_or(TOO_LONG)?;
        let path = |text: std::fmt::Arguments<'_>| {
            let mut path = UserFolder { path: [0; LONGEST], length: 0 };
            path.write_fmt(text).map(|()| path).map_err(|_| TOO_LONG)
        };
        let below = match name {
            "" => path(format_args!("{own}"))?,
            name => path(format_args!("{own}/{name}"))?,
        };
        let above = folder::open_above(path(format_args!("{above}/"))?.as_c_str())?;
        let opened = folder::open_within(above, below.as_c_str(), flags);
        file::close(above);
        opened
    }
}

/// The user that the name of a folder says, behind the prefix.
pub(crate) fn user_in(name: &str) -> Option<u32> {
    let number = name.split_once('.').map_or(name, |(number, _)| number);
    let is_canonical = number == "0" || !number.starts_with('0');
    number.parse().ok().filter(|_| is_canonical && number.bytes().all(|b| b.is_ascii_digit()))
}

/// True if that number means one user. In a user namespace that does not map all, the unmapped users share one.
pub(crate) fn is_one_user(uid: u32) -> bool {
    let maps_all = || {
        // The first line: the first user here, and outside, and how many. A namespace that maps nobody has no line.
        let line = numbers_in(c"/proc/self/uid_map");
        line.is_none_or(|[.., count]| count.is_some_and(|n| n >= u32::MAX.into()))
    };
    uid != shared_number() || maps_all()
}

/// The number that the kernel shows for a user who is not mapped.
fn shared_number() -> u32 {
    const USUAL: u32 = 65534;
    /// Zero: not asked for yet.
    static SHARED: AtomicU32 = AtomicU32::new(0);
    if SHARED.load(Relaxed) == 0 {
        let found = numbers_in(c"/proc/sys/kernel/overflowuid").and_then(|[first, ..]| first);
        SHARED.store(found.and_then(|number| number.try_into().ok()).unwrap_or(USUAL), Relaxed);
    }
    SHARED.load(Relaxed)
}

/// The first numbers in a file of /proc.
fn numbers_in(path: &CStr) -> Option<[Option<u64>; 3]> {
    let mut text = [0; 128];
    let fd = file::open_to_read(path).ok()?;
    let read = file::read(fd, text.as_mut_ptr(), text.len());
    file::close(fd);
    let mut words = std::str::from_utf8(&text[..read.ok()?]).ok()?.split_ascii_whitespace();
    Some([(); 3].map(|()| words.next()?.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;

    /// A folder to stand for shared memory.
    struct Base(CString);

    impl Base {
        fn new(test: &str) -> Base {
            let path = format!("/dev/shm/sanshim-test-users-{}-{test}", std::process::id());
            fs::create_dir(&path).unwrap();
            Base(CString::new(path).unwrap())
        }

        fn at(&self, name: &str) -> String {
            format!("{}/{name}", self.0.to_str().unwrap())
        }

        fn names(&self) -> Vec<String> {
            let all = fs::read_dir(self.0.to_str().unwrap()).unwrap();
            all.map(|one| one.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Base {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.to_str().unwrap());
        }
    }

    #[test]
    fn a_name_that_somebody_took_is_no_users_folder() {
        let (base, uid) = (Base::new("taken"), process::euid());
        let usual = base.at(&format!("sanshim-user-{uid}"));
        assert!(UserFolder::find_in(&base.0, uid).is_none());
        // As another user's folder, which only root could make here: not one that is this user's alone.
        fs::write(&usual, "squatted").unwrap();
        fs::create_dir(base.at(&format!("sanshim-user-{uid}.zzz"))).unwrap();
        let open: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(base.at(&format!("sanshim-user-{uid}.zzz")), open).unwrap();
        assert!(UserFolder::find_in(&base.0, uid).is_none());
        let made = UserFolder::make_of(&base.0, uid).unwrap();
        assert!(made.as_str().starts_with(&format!("{usual}.")), "{}", made.as_str());
        let again = UserFolder::make_of(&base.0, uid).unwrap();
        assert_eq!((again.as_str(), base.names().len()), (made.as_str(), 3));
        assert_eq!(UserFolder::find_in(&base.0, uid).unwrap().as_str(), made.as_str());
        assert!(UserFolder::find_in(&base.0, uid + 1).is_none());
        // A process that finds the usual one takes that.
        fs::remove_file(&usual).unwrap();
        fs::create_dir(&usual).unwrap();
        assert_eq!(UserFolder::find_in(&base.0, uid).unwrap().as_str(), usual);
    }

    #[test]
    fn a_link_in_a_folders_place_leads_no_mode_elsewhere() {
        use std::os::unix::fs::{symlink, PermissionsExt};
        let (base, uid) = (Base::new("link"), process::euid());
        let made = UserFolder::make_of(&base.0, uid).unwrap();
        let elsewhere = base.at("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
        fs::remove_dir(made.as_str()).unwrap();
        symlink(&elsewhere, made.as_str()).unwrap();
        assert_eq!(made.set_mode(uid), Err(Errno(libc::EPERM)));
        let mode = || fs::metadata(&elsewhere).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o700);
        fs::remove_file(made.as_str()).unwrap();
        fs::rename(&elsewhere, made.as_str()).unwrap();
        assert_eq!(made.set_mode(uid + 1), Err(Errno(libc::EPERM)));
        assert_eq!(made.set_mode(uid), Ok(()));
        assert_eq!(UserFolder::find_in(&base.0, uid).unwrap().as_str(), made.as_str());
    }

    #[test]
    fn processes_that_begin_at_once_have_one_folder() {
        let (base, uid) = (Base::new("race"), process::euid());
        fs::write(base.at(&format!("sanshim-user-{uid}")), "squatted").unwrap();
        let found = || UserFolder::make_of(&base.0, uid).unwrap().as_str().to_owned();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(found);
            }
        });
        let (one, other) = (found(), found());
        assert_eq!(one, other);
    }

    #[test]
    fn only_numbers_name_users() {
        assert_eq!(user_in("0"), Some(0));
        assert_eq!(user_in("1000"), Some(1000));
        assert_eq!(user_in("1000.ab"), Some(1000));
        for name in ["", "00", "01", "+1", "peers-1", "offers-0", ".1", "4294967296"] {
            assert_eq!(user_in(name), None, "{name}");
        }
    }

    #[test]
    fn every_number_is_a_user_where_all_are_mapped() {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap();
        let all = map.split_whitespace().nth(2) == Some("4294967295");
        assert_eq!(is_one_user(65534), all, "{map}");
        assert!(is_one_user(0) && is_one_user(1000));
    }
}
