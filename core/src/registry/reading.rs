//! Reads what all processes publish: the folders that the caller may see, and those of containers.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::mounts::{self, Mounts, SharedFolder, MOST_NAMES};
use super::numbers::Numbers;
use super::place::{self, RegistryPlace};
use super::publisher::Publisher;
use super::reader::{read_file, FileOutcome, Problem, ProcessSight, Snapshot, Spot};
use crate::sys::folder::{self, Known};
use crate::sys::user_folder::{self, UserFolder};

/// Reads every folder that the caller may see: that of its own user, or those of all users if it is root; and the same in
/// other mount namespaces. Removes the files of processes that have ended, if they belong to the caller. Connections that
/// were never busy are taken from the kernel.
pub fn read_all() -> Snapshot {
    let mut snapshot = read_published();
    let mut tables = super::quiet::Tables::default();
    for process in &mut snapshot.processes {
        let quiet = super::quiet::connections(process.pid, &process.connections, &mut tables);
        process.connections.extend(quiet);
        process.connections.sort_by_key(|connection| connection.fd);
    }
    super::other_ends::tell_apart(&mut snapshot.processes);
    snapshot
}

/// As [`read_all`], but reads only what the processes publish: connections that were on the SAN, or may soon be.
pub fn read_published() -> Snapshot {
    let mounts = Mounts::look();
    let mut reading = Reading::new(&mounts);
    let own = mounts::own_identity();
    let user = user();
    if user != 0 {
        if let Some(folder) = UserFolder::find(user) {
            reading.add_folder(Path::new(folder.as_str()), Some(user), own);
        }
    } else {
        let shared = OsStr::from_bytes(user_folder::SHARED_MEMORY.to_bytes());
        let entries = fs::read_dir(shared).into_iter().flatten().flatten();
        for entry in entries {
            if let Some(owner) = folder_owner(&entry.file_name()) {
                reading.add_folder(&entry.path(), Some(owner), own);
            }
        }
        for (pid, error) in &mounts.problems {
            let path = place::shown(Some(*pid), Path::new(mounts::SHARED_MEMORY));
            reading.add_problem(&path, error.to_string());
        }
    }
    for shared in &mounts.others {
        reading.add_shared(shared);
    }
    reading.finish()
}

/// Reads one folder, whichever user owns it.
pub fn read_folder(folder: &Path) -> Snapshot {
    let mounts = Mounts::default();
    let mut reading = Reading::new(&mounts);
    reading.add_folder(folder, None, None);
    reading.finish()
}

/// The user in a folder's name.
fn folder_owner(name: &OsStr) -> Option<u32> {
    user_folder::user_in(name.to_str()?.strip_prefix(user_folder::PREFIX)?)
}

/// A look at folders.
struct Reading<'a> {
    snapshot: Snapshot,
    sight: ProcessSight<'a>,
}

impl<'a> Reading<'a> {
    fn new(mounts: &'a Mounts) -> Self {
        let sight = ProcessSight { numbers: Numbers::new(), mounts };
        Reading { snapshot: Snapshot::default(), sight }
    }

    fn finish(mut self) -> Snapshot {
        self.snapshot.processes.sort_by_key(|process| process.pid);
        self.snapshot.problems.sort_by(|a, b| a.path.cmp(&b.path));
        self.snapshot
    }

    fn add_problem(&mut self, path: &Path, why: String) {
        self.snapshot.problems.push(Problem { path: path.to_owned(), why });
    }

    fn add_folder(
        &mut self,
        folder: &Path,
        owner: Option<u32>,
        shared: Option<mounts::FolderIdentity>,
    ) {
        if let Err(why) = self.try_add_folder(folder, owner, shared) {
            self.add_problem(folder, why);
        }
    }

    fn try_add_folder(
        &mut self,
        folder: &Path,
        owner: Option<u32>,
        shared: Option<mounts::FolderIdentity>,
    ) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let opened = match owner {
            // Any user may make a folder of any name. Such a folder says nothing of anybody.
            Some(owner) if !is_folder_of(folder, owner) => return Ok(()),
            Some(_) => mounts::open_here(folder, false),
            None => fs::File::open(folder),
        };
        let opened = opened.map_err(text)?;
        let found = opened.metadata().map_err(text)?;
        if owner.is_some_and(|owner| found.uid() != owner) {
            return Ok(());
        }
        let mut elsewhere = 0;
        let mut wrong = Wrong::default();
        for name in mounts::names(&opened, MOST_NAMES).map_err(text)? {
            let path = folder.join(&name);
            let spot = Spot { root: None, path: &path, shared };
            match self.add_file(&spot, &name) {
                Some(FileOutcome::Ended(place)) => remove_own(&place),
                Some(FileOutcome::Elsewhere) => elsewhere += 1,
                // The caller can mend its own files. Of somebody else's it is told once.
                Some(FileOutcome::Skipped(why)) if found.uid() == user() => {
                    self.add_problem(&path, why);
                }
                Some(FileOutcome::Skipped(why)) => wrong.add(path, why),
                Some(FileOutcome::Alive(..)) | None => {}
            }
        }
        self.add_wrong(wrong);
        match elsewhere {
            0 => Ok(()),
            some => Err(format!(
                "{some} of its files belong to processes of other PID namespaces; run sanctl in their containers, or as root on the host, whose /proc shows all processes"
            )),
        }
    }

    /// Adds what lies in the shared memory of a container. The container's root may put anything in. So the reader says
    /// once what is wrong with its files, and removes nothing.
    fn add_shared(&mut self, shared: &SharedFolder) {
        let (mut wrong, mut left) = (Wrong::default(), MOST_NAMES);
        for folder in shared.names(MOST_NAMES) {
            if folder_owner(&folder).is_none() {
                continue;
            }
            let folder = shared.path_of(&folder);
            let names = shared.names_in(&folder, left);
            // To open a folder costs as much as to open a file.
            left = left.saturating_sub(names.len() + 1);
            for name in names {
                let path = folder.join(&name);
                let (root, shared) = (Some(shared.pid), Some(shared.identity));
                let spot = Spot { root, path: &path, shared };
                if let Some(FileOutcome::Skipped(why)) = self.add_file(&spot, &name) {
                    wrong.add(place::shown(root, &path), why);
                }
            }
        }
        self.add_wrong(wrong);
    }

    fn add_wrong(&mut self, wrong: Wrong) {
        let Some((path, why)) = wrong.first else { return };
        let others = match wrong.others {
            0 => String::new(),
            some => format!("; other files there are skipped too ({some})"),
        };
        self.add_problem(&path, format!("{why}{others}"));
    }

    /// Adds the process that has that file. Gives what is left to do; nothing if the name is no file's.
    fn add_file(&mut self, spot: &Spot<'_>, name: &OsStr) -> Option<FileOutcome> {
        let publisher = Publisher::parse(name.as_bytes())?;
        match read_file(spot, publisher, &mut self.sight) {
            Ok(FileOutcome::Alive(process, problem)) => {
                self.snapshot.processes.push(*process);
                problem.map(FileOutcome::Skipped)
            }
            Ok(outcome) => Some(outcome),
            // Its process has ended in this moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // Another user's container.
            Err(error)
                if spot.root.is_some() && error.kind() == io::ErrorKind::PermissionDenied =>
            {
                None
            }
            Err(error) => Some(FileOutcome::Skipped(error.to_string())),
        }
    }
}

/// What is wrong with files that somebody else may have put there.
#[derive(Default)]
struct Wrong {
    first: Option<(PathBuf, String)>,
    others: usize,
}

impl Wrong {
    fn add(&mut self, path: PathBuf, why: String) {
        match self.first {
            Some(_) => self.others += 1,
            None => self.first = Some((path, why)),
        }
    }
}

fn user() -> u32 {
    // SAFETY: no memory is involved.
    unsafe { libc::geteuid() }
}

/// True of that user's folder in shared memory, as far as the kernel knows without asking a program that serves it.
fn is_folder_of(path: &Path, owner: u32) -> bool {
    let known = CString::new(path.as_os_str().as_bytes()).ok();
    let known = known.and_then(|path| Known::of(&path).ok());
    known.is_some_and(|known| known.mode & libc::S_IFMT == libc::S_IFDIR && known.uid == owner)
}

/// Removes a file that was read, if it is in a folder of ours. A later process of the same id may have put its own there, which
/// stays.
fn remove_own(place: &RegistryPlace) {
    let (Some(folder), Some(name)) = (place.path.parent(), place.path.file_name()) else { return };
    let opened = match place.shared {
        Some(_) => mounts::open_here(folder, false),
        None => fs::File::open(folder),
    };
    let is_ours = |opened: &fs::File| opened.metadata().is_ok_and(|found| found.uid() == user());
    let Some(opened) = opened.ok().filter(is_ours) else { return };
    let Ok(name) = CString::new(name.as_bytes()) else { return };
    if place.is_there() {
        // Another reader may have removed it already.
        let _ = folder::remove_from(opened.as_raw_fd(), &name);
    }
}
