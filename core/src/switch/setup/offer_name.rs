//! Where connectors find a process's offer socket: a file in a folder of the process's user, in shared memory or where
//! the configuration says.
//!
//! The file's rights keep other users off. A descriptor that somebody sends waits in the socket. The thread that takes
//! the descriptor out, or closes the socket, also closes the file behind it, which takes as long as the sender wants.
//! So nobody may get there who is not to share memory with us anyway. An abstract name, which the kernel would remove
//! with its process, has no rights.
//!
//! A process that is killed, or that changed its user, leaves its name behind. Connectors find nobody there any more,
//! and the next processes of that user remove the name.

use crate::sys::folder::OpenedPath;
use crate::sys::packet::{self, Name};
use crate::sys::user_folder::{user_in, UserFolder, PREFIX};
use crate::sys::{access_list, file, folder, hidden, process, Errno, Fd, Result};
use std::ffi::{CStr, CString};
use std::time::Duration;

/// One of a living process is listened at from a moment after it was made on.
const MADE_WITHIN: Duration = Duration::from_secs(60);

/// A process's own. Ended with [`OfferName::close`].
pub(super) struct OfferName {
    folder: Fd,
    file: CString,
    path: CString,
}

fn name_of(number: [u64; 2]) -> String {
    let [a, b] = number;
    format!("{a:016x}{b:016x}")
}

/// True of a path that a process's offer socket may have.
pub(super) fn is_one(path: &str) -> bool {
    let Some((folder, file)) = path.rsplit_once('/') else { return false };
    let folder = folder.rsplit('/').next().and_then(|name| name.strip_prefix(PREFIX));
    let is_number =
        file.len() == name_of([0; 2]).len() && file.bytes().all(|b| b.is_ascii_hexdigit());
    is_number && folder.is_some_and(|user| user_in(user).is_some())
}

fn text(text: String) -> CString {
    // It has no zeros.
    CString::new(text).unwrap_or_default()
}

/// Connects a socket to the process of user `uid` that said so. `base` is where the users have their folders.
///
/// # Errors
/// EACCES if that process does not share memory with this one's user; ECONNREFUSED or ENOENT if it is gone; EPERM if its
/// user has no such folder.
pub(super) fn connect(base: &CStr, socket: Fd, uid: u32, number: [u64; 2]) -> Result<()> {
    let folder = UserFolder::find_in(base, uid).ok_or(Errno(libc::EPERM))?;
    connect_in(&folder, socket, number)
}

fn connect_in(folder: &UserFolder, socket: Fd, number: [u64; 2]) -> Result<()> {
    // That user may have put a link there, to somebody else's socket or to a file system that never answers. This
    // connects to what was opened, by whichever name.
    let opened = folder.open_name(&text(name_of(number)), libc::O_PATH)?;
    let connected = packet::connect(socket, &Name::of_file(OpenedPath::of(opened).as_c_str()));
    file::close(opened);
    connected
}

impl OfferName {
    /// A socket of that name in this user's folder.
    pub(super) fn bind(folder: &UserFolder, number: [u64; 2]) -> Result<(Fd, OfferName)> {
        Self::bind_in(folder.as_str(), process::euid(), number)
    }

    fn bind_in(folder: &str, uid: u32, number: [u64; 2]) -> Result<(Fd, OfferName)> {
        let (file, path) = (name_of(number), format!("{folder}/{}", name_of(number)));
        let opened = hidden::keep(open(&text(folder.to_owned()), uid)?);
        sweep(opened, &file);
        let name = OfferName { folder: opened, file: text(file), path: text(path) };
        let bound = packet::bind_privately(&Name::of_file(&name.path));
        let made = bound.and_then(|socket| {
            name.give_to_owner().map(|()| socket).inspect_err(|_| {
                file::close(socket);
                name.remove();
            })
        });
        match made {
            Ok(socket) => Ok((socket, name)),
            Err(e) => {
                name.close();
                Err(e)
            }
        }
    }

    /// The umask may have taken the owner's rights away.
    fn give_to_owner(&self) -> Result<()> {
        self.with_socket(|path| file::set_mode_of(path, 0o600))
    }

    /// Calls `act` with a path of the socket that has the name. A process of this user may rule in a container and have the folder:
    /// what it puts in the socket's place gets no rights from this one.
    fn with_socket(&self, act: impl FnOnce(&CStr) -> Result<()>) -> Result<()> {
        let opened = folder::open_within(self.folder, &self.file, libc::O_PATH)?;
        let done = match is_socket_of(opened, process::euid()) {
            true => act(OpenedPath::of(opened).as_c_str()),
            false => Err(Errno(libc::EPERM)),
        };
        file::close(opened);
        done
    }

    /// Lets processes of those users come as well.
    ///
    /// # Errors
    /// EOPNOTSUPP where files have no access lists; EINVAL if a user is unknown in this user namespace.
    pub(super) fn admit(&self, users: &[u32]) -> Result<()> {
        if users.is_empty() {
            return Ok(());
        }
        self.with_socket(|path| access_list::let_write(path, users))
    }

    /// False once somebody removed it: connectors no longer find the socket.
    pub(super) fn is_there(&self) -> bool {
        hidden::is_hidden(self.folder) && folder::status_in(self.folder, &self.file).is_ok()
    }

    /// No connector finds the socket from now on.
    pub(super) fn remove(&self) {
        if hidden::is_hidden(self.folder) {
            // If this process has changed its user meanwhile, another one removes it.
            let _ = folder::remove_from(self.folder, &self.file);
        }
    }

    /// Leaves the name as it is.
    pub(super) fn close(self) {
        hidden::close(self.folder);
    }
}

/// True if `opened` is the file of a Unix socket, and that user's.
fn is_socket_of(opened: Fd, uid: u32) -> bool {
    file::stat(opened)
        .is_ok_and(|it| it.st_mode & libc::S_IFMT == libc::S_IFSOCK && it.st_uid == uid)
}

/// Opens the user's folder.
fn open(path: &CStr, uid: u32) -> Result<Fd> {
    let opened = folder::open(path)?;
    if file::stat(opened).is_ok_and(|it| folder::is_private(it.st_mode, it.st_uid, uid)) {
        Ok(opened)
    } else {
        file::close(opened);
        Err(Errno(libc::EPERM))
    }
}

/// Removes the names of processes that are gone, of those that begin as this process's own does: a sixteenth. So about
/// sixteen are left however many processes are killed, and where thousands live a new one does not ask for them all.
fn sweep(folder: Fd, own: &str) {
    let _ = folder::each_name(folder, |name| {
        // Other things are in the folder, too.
        let is_like_ours =
            name.to_bytes().len() == own.len() && name.to_bytes().first() == own.as_bytes().first();
        if is_like_ours && folder::is_older(folder, name, MADE_WITHIN) && is_nobodys(folder, name) {
            let _ = folder::remove_from(folder, name);
        }
    });
}

/// True of the name of a socket that nobody listens at. A link is not followed: it may lead to where nobody answers.
fn is_nobodys(folder: Fd, name: &CStr) -> bool {
    let Ok(opened) = folder::open_within(folder, name, libc::O_PATH) else { return false };
    let is_nobodys = is_socket_of(opened, process::euid())
        && packet::probe_abandoned(&Name::of_file(OpenedPath::of(opened).as_c_str()));
    file::close(opened);
    is_nobodys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{net, poll};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    /// A folder of one test's own.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let path = format!("/dev/shm/sanshim-offers-test-{}-{test}", std::process::id());
            fs::create_dir(&path).unwrap();
            Folder(path.into())
        }

        fn path(&self) -> &Path {
            &self.0
        }

        fn bind(&self, number: [u64; 2]) -> Result<(Fd, OfferName)> {
            OfferName::bind_in(&self.0.to_string_lossy(), process::euid(), number)
        }

        fn has(&self, number: [u64; 2]) -> bool {
            fs::symlink_metadata(self.0.join(name_of(number))).is_ok()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn make_old(path: &Path) {
        let path = text(path.to_string_lossy().into_owned());
        let times = [libc::timespec { tv_sec: 1_000_000_000, tv_nsec: 0 }; 2];
        let (at, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_NOFOLLOW);
        // SAFETY: a path, and two times.
        let done = unsafe { libc::utimensat(at, path.as_ptr(), times.as_ptr(), flags) };
        assert_eq!(done, 0);
    }

    #[test]
    fn a_name_is_its_users_alone_until_it_is_removed() {
        let folder = Folder::new("alone");
        let (socket, name) = folder.bind([1, 2]).unwrap();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder.path().join(name_of([1, 2]))), 0o600);
        assert!(name.is_there());
        assert!(folder.bind([1, 2]).is_err(), "it is another one's");
        assert!(name.is_there());
        name.remove();
        assert!(!name.is_there() && !folder.has([1, 2]));
        name.close();
        file::close(socket);
    }

    #[test]
    fn what_lies_in_a_names_place_gets_no_rights() {
        let (folder, elsewhere) = (Folder::new("place"), Folder::new("elsewhere"));
        let (socket, name) = folder.bind([1, 2]).unwrap();
        let (file, place) = (elsewhere.path().join("file"), folder.path().join(name_of([1, 2])));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let put_there: [&dyn Fn() -> std::io::Result<()>; 2] =
            [&|| std::os::unix::fs::symlink(&file, &place), &|| fs::hard_link(&file, &place)];
        for put_there in put_there {
            fs::remove_file(&place).unwrap();
            put_there().unwrap();
            assert!(name.admit(&[7]).is_err() && name.give_to_owner().is_err());
            // A list of users would show in the group's rights.
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        }
        name.close();
        file::close(socket);
    }

    #[test]
    fn an_offer_sockets_path_is_known() {
        let number = name_of([1, u64::MAX]);
        assert!(is_one(&format!("/dev/shm/sanshim-user-0/{number}")));
        assert!(is_one(&format!("/run/san/sanshim-user-1000.00ff/{number}")));
        for other in ["", "/", "/dev/shm/sanshim-user-0/peers-1", "/run/docker.sock"] {
            assert!(!is_one(other), "{other}");
        }
        assert!(!is_one(&format!("/dev/shm/sanshim-user-x/{number}")));
        assert!(!is_one(&format!("/dev/shm/other/{number}")));
    }

    #[test]
    fn names_of_the_dead_are_removed() {
        const SEVENTH: u64 = 7 << 60;
        let (own, dead, young, living) =
            ([SEVENTH, 0], [SEVENTH, 1], [SEVENTH, 2], [SEVENTH | 1, 3]);
        let unlike = [6 << 60, 4];
        let folder = Folder::new("dead");
        let ends: Vec<_> =
            [dead, young, living, unlike].map(|number| folder.bind(number).unwrap()).into();
        let listener = ends[2].0;
        net::listen(listener, 1).unwrap();
        for number in [dead, living, unlike] {
            make_old(&folder.path().join(name_of(number)));
        }
        for (at, (socket, name)) in ends.into_iter().enumerate() {
            // The living one is not closed.
            if at != 2 {
                file::close(socket);
            }
            name.close();
        }
        // It leads to one where nobody listens either.
        let linked = [SEVENTH, 5];
        let link = folder.path().join(name_of(linked));
        std::os::unix::fs::symlink(name_of(unlike), &link).unwrap();
        make_old(&link);
        let (socket, name) = folder.bind(own).unwrap();
        assert!(!folder.has(dead));
        assert!(folder.has(linked), "a link is not followed");
        assert_eq!(poll::poll_one(listener, libc::POLLIN), Ok(0), "nobody waits there");
        for (number, why) in [
            (young, "its process may be about to listen"),
            (living, "somebody listens there"),
            (unlike, "others see to that"),
            (own, "its own"),
        ] {
            assert!(folder.has(number), "{why}");
        }
        name.close();
        file::close(socket);
    }

    #[test]
    fn what_is_no_folder_of_that_user_is_not_used() {
        let folder = Folder::new("others");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(folder.bind([1, 2]).is_err(), "everybody may remove its names");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let as_another = |folder: &Folder| {
            OfferName::bind_in(&folder.0.to_string_lossy(), process::euid() + 1, [1, 2]).map(drop)
        };
        assert!(as_another(&folder).is_err());
        let link = Folder::new("link");
        fs::remove_dir(link.path()).unwrap();
        std::os::unix::fs::symlink(folder.path(), link.path()).unwrap();
        assert!(link.bind([1, 2]).is_err());
        fs::remove_file(link.path()).unwrap();
    }

    #[test]
    fn a_name_leads_to_what_its_user_bound_there_alone() {
        let (base, uid) = (Folder::new("base"), process::euid());
        let own = base.path().join(format!("{PREFIX}{uid}"));
        fs::create_dir(&own).unwrap();
        let at = |number| own.join(name_of(number));
        let bound = OfferName::bind_in(&own.to_string_lossy(), uid, [1, 2]);
        let (listener, name) = bound.unwrap();
        net::listen(listener, 1).unwrap();
        let connect = |uid, number| {
            let socket = packet::deaf_socket().unwrap();
            let base = text(base.path().to_string_lossy().into_owned());
            let connected = connect(&base, socket, uid, number);
            file::close(socket);
            connected
        };
        assert_eq!(connect(uid, [1, 2]), Ok(()));
        assert_eq!(connect(uid + 1, [1, 2]), Err(Errno(libc::EPERM)));
        assert_eq!(connect(uid, [3, 4]), Err(Errno(libc::ENOENT)));
        // A link to somebody else's socket, or anywhere.
        std::os::unix::fs::symlink(at([1, 2]), at([3, 4])).unwrap();
        assert_eq!(connect(uid, [3, 4]), Err(Errno(libc::ECONNREFUSED)));
        // The folder itself is a link.
        let elsewhere = base.path().join("elsewhere");
        fs::rename(&own, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &own).unwrap();
        assert_eq!(connect(uid, [1, 2]), Err(Errno(libc::EPERM)));
        name.close();
        file::close(listener);
    }
}
