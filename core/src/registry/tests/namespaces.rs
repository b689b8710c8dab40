//! Processes of several PID namespaces that publish in one folder.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use super::super::layout::{RegistryHeader, VERSION};
use super::super::sweep::sweep;
use super::*;

const NOT_PERMITTED: i32 = 77;

/// Runs `body` as process 1 of a new PID namespace, and gives its exit status. /proc stays as it is.
fn in_namespace(body: impl FnOnce() -> i32) -> i32 {
    in_child(|| {
        // SAFETY: no memory is involved.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            return NOT_PERMITTED;
        }
        in_child(|| {
            assert_eq!(std::process::id(), 1);
            body()
        })
    })
}

fn expect_success(status: i32) {
    if status == NOT_PERMITTED {
        eprintln!("not run: this user may not make a PID namespace");
        return;
    }
    assert_eq!(status, 0);
}

fn names(folder: &Folder) -> usize {
    fs::read_dir(&folder.0).expect("folder").count()
}

#[test]
fn two_first_processes_have_a_file_each_and_both_are_shown() {
    let folder = Folder::new();
    expect_success(in_namespace(|| {
        let outer = folder.registry().expect("open");
        outer.allocate().expect("a slot").publish(&identity(7));
        in_namespace(|| {
            let inner = folder.registry().expect("open");
            inner.allocate().expect("a slot").publish(&identity(8));
            let shown = folder.read();
            assert_eq!(shown.problems, []);
            let [one, other] = <[_; 2]>::try_from(shown.processes).expect("two processes");
            assert_eq!((one.own_pid, other.own_pid), (Some(1), Some(1)));
            // By the numbers that /proc shows, which is of the namespace outside.
            for process in [&one, &other] {
                assert_ne!(process.pid, 1);
                let its = numbers::namespace_of(process.pid, "pid");
                assert_eq!(its, Some(process.file.publisher.namespace));
            }
            let mut fds = [one, other].map(|process| process.connections[0].fd);
            fds.sort_unstable();
            assert_eq!(fds, [7, 8]);
            0
        })
    }));
    // Both have ended.
    let left = folder.read();
    assert_eq!((left.processes, left.problems), (vec![], vec![]));
    assert!(!folder.0.exists() || names(&folder) == 0);
}

/// A child that has not renewed has the same number there as its parent has, and is another process.
#[test]
fn a_child_of_the_same_number_in_another_namespace_removes_nothing() {
    let folder = Folder::new();
    expect_success(in_namespace(|| {
        let registry = folder.registry().expect("open");
        let status = in_namespace(|| {
            registry.remove();
            0
        });
        assert_eq!(status, 0);
        assert!(folder.file().exists());
        0
    }));
}

#[test]
fn a_fork_child_in_another_namespace_publishes_beside_its_parent() {
    let folder = Folder::new();
    let mut registry = folder.registry().expect("open");
    registry.allocate().expect("a slot").publish(&identity(7));
    registry.before_fork();
    expect_success(in_namespace(|| {
        registry.after_fork_in_child().expect("a file for the child");
        assert_eq!(folder.read().processes.len(), 2);
        registry.remove();
        0
    }));
    assert_eq!(folder.only_process().own_pid, None);
}

/// Gives this process's file the name and the header of one of another PID namespace, which /proc does not show.
fn move_elsewhere(folder: &Folder, version: u32) {
    let file = OpenOptions::new().write(true).open(folder.file()).expect("the file");
    let write = |bytes: &[u8], at: usize| file.write_all_at(bytes, at as u64).expect("write");
    write(&1u64.to_ne_bytes(), std::mem::offset_of!(RegistryHeader, pid_namespace));
    write(&version.to_ne_bytes(), std::mem::offset_of!(RegistryHeader, version));
    let name = Publisher { namespace: 1, ..own() }.to_string();
    fs::rename(folder.file(), folder.0.join(name)).expect("rename");
}

fn sweep_there(folder: &Folder) {
    let path = FolderPath::new(format_args!("{}", folder.0.display())).expect("a path");
    let opened = path.open(kernel::effective_user()).expect("the folder");
    sweep(&opened, own().namespace, 0);
}

#[test]
fn a_file_of_another_namespace_stays_while_its_process_lives() {
    for by_reader in [true, false] {
        let folder = Folder::new();
        let status = in_child(|| {
            let _registry = folder.registry().expect("open");
            move_elsewhere(&folder, VERSION);
            let why = folder.only_problem();
            assert!(why.contains("1 of its files belong to processes of other PID"), "{why}");
            sweep_there(&folder);
            assert_eq!(names(&folder), 1);
            0
        });
        assert_eq!(status, 0);
        assert_eq!(names(&folder), 1);
        if by_reader {
            assert_eq!(folder.read().problems, []);
        } else {
            sweep_there(&folder);
        }
        assert_eq!(names(&folder), 0, "by a reader: {by_reader}");
    }
}

/// It may not hold its file.
#[test]
fn a_file_of_another_version_and_namespace_is_left_alone() {
    let folder = Folder::new();
    let status = in_child(|| {
        let _registry = folder.registry().expect("open");
        move_elsewhere(&folder, VERSION - 1);
        0
    });
    assert_eq!(status, 0);
    sweep_there(&folder);
    assert!(folder.only_problem().contains("has version"));
    assert_eq!(names(&folder), 1);
}
