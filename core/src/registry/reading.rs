//! Reading what all processes publish: the folders that the caller may see, and those of containers.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::mounts::{self, Mounts, Shared};
use super::numbers::Numbers;
use super::place::{self, Place};
use super::publisher::Publisher;
use super::reader::{read_file, Outcome, Problem, Sight, Snapshot, Spot};
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
    // SAFETY: no memory is involved.
    let user = unsafe { libc::geteuid() };
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

/// Reads one folder, whoever owns it.
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
    sight: Sight<'a>,
}

impl<'a> Reading<'a> {
    fn new(mounts: &'a Mounts) -> Self {
        let sight = Sight { numbers: Numbers::new(), mounts };
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

    fn add_folder(&mut self, folder: &Path, owner: Option<u32>, shared: Option<mounts::Identity>) {
        if let Err(why) = self.try_add_folder(folder, owner, shared) {
            self.add_problem(folder, why);
        }
    }

    fn try_add_folder(
        &mut self,
        folder: &Path,
        owner: Option<u32>,
        shared: Option<mounts::Identity>,
    ) -> Result<(), String> {
        if let Some(owner) = owner {
            let found = fs::symlink_metadata(folder).map_err(|error| error.to_string())?;
            if !found.is_dir() || found.uid() != owner {
                // Anybody may make one of any name. What it says is nobody's.
                return Ok(());
            }
        }
        let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
        let mut elsewhere = 0;
        for entry in entries.flatten() {
            let path = entry.path();
            let spot = Spot { root: None, path: &path, shared };
            match self.add_file(&spot, &entry.file_name()) {
                Some(Outcome::Ended(place)) => remove_own(&place),
                Some(Outcome::Elsewhere) => elsewhere += 1,
                Some(Outcome::Skipped(why)) => self.add_problem(&path, why),
                Some(Outcome::Alive(..)) | None => {}
            }
        }
        match elsewhere {
            0 => Ok(()),
            some => Err(format!(
                "{some} of its files belong to processes of other PID namespaces; run sanctl there, or where /proc shows them"
            )),
        }
    }

    /// Adds what lies in the shared memory of a container. Whoever rules there may put anything in: what is wrong with its
    /// files is said once, and nothing is removed.
    fn add_shared(&mut self, shared: &Shared) {
        let mut wrong = Vec::new();
        for folder in shared.names() {
            if folder_owner(&folder).is_none() {
                continue;
            }
            let folder = shared.path_of(&folder);
            for name in shared.names_in(&folder) {
                let path = folder.join(&name);
                let (root, shared) = (Some(shared.pid), Some(shared.identity));
                let spot = Spot { root, path: &path, shared };
                if let Some(Outcome::Skipped(why)) = self.add_file(&spot, &name) {
                    wrong.push((place::shown(root, &path), why));
                }
            }
        }
        let Some((path, why)) = wrong.first() else { return };
        let others = match wrong.len() - 1 {
            0 => String::new(),
            some => format!("; other files there are skipped too ({some})"),
        };
        self.add_problem(path, format!("{why}{others}"));
    }

    /// Adds the process whose file that is. Gives what is left to do; nothing if the name is no file's.
    fn add_file(&mut self, spot: &Spot<'_>, name: &OsStr) -> Option<Outcome> {
        let publisher = Publisher::parse(name.as_bytes())?;
        match read_file(spot, publisher, &mut self.sight) {
            Ok(Outcome::Alive(process, problem)) => {
                self.snapshot.processes.push(*process);
                problem.map(Outcome::Skipped)
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
            Err(error) => Some(Outcome::Skipped(error.to_string())),
        }
    }
}

/// Removes a file that was read, if it is ours. A later process of the same id may have put its own there, which stays.
fn remove_own(place: &Place) {
    // SAFETY: no memory is involved.
    let user = unsafe { libc::geteuid() };
    let is_ours = fs::symlink_metadata(&place.path).is_ok_and(|found| found.uid() == user);
    if is_ours && place.is_there() {
        // Another reader may have removed it already.
        let _ = fs::remove_file(&place.path);
    }
}
