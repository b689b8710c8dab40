//! Fork children, and what processes leave behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn a_fork_child_has_its_own_file_at_the_same_address() {
    let folder = Folder::new();
    let mut registry = folder.registry().expect("open");
    let slot = registry.allocate().expect("a slot");
    let other = registry.allocate().expect("a slot");
    slot.publish(&identity(7));
    slot.sent.bytes.add(100);

    let status = in_child(|| {
        registry.after_fork_in_child().expect("a file for the child");
        assert_eq!(slot.sent.bytes.get(), 100);
        slot.sent.bytes.add(11);
        slot.set_state(State::CloseWait);
        registry.release(other);
        registry.allocate().expect("a slot").publish(&identity(8));

        let snapshot = folder.read();
        assert_eq!(snapshot.problems, []);
        let [ours] = <[_; 1]>::try_from(
            snapshot
                .processes
                .into_iter()
                .filter(|p| p.pid == std::process::id())
                .collect::<Vec<_>>(),
        )
        .expect("the child");
        assert_eq!(ours.program, "some-program");
        assert_eq!(ours.connections.iter().map(|c| c.fd).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(ours.connections[0].sent.bytes, 111);
        registry.remove();
        0
    });
    assert_eq!(status, 0);

    let parent = folder.only_process();
    assert_eq!(parent.pid, std::process::id());
    assert_eq!(parent.connections.len(), 1, "the child's connection is not the parent's");
    assert_eq!(parent.connections[0].sent.bytes, 100);
    assert_eq!(parent.connections[0].state, State::Established);
}

#[test]
fn a_fork_child_publishes_what_was_there_at_the_fork() {
    let folder = Folder::new();
    let mut registry = folder.registry().expect("open");
    let slot = registry.allocate().expect("a slot");
    slot.publish(&identity(7));
    slot.sent.bytes.add(100);
    registry.before_fork();
    let status = in_child(|| {
        // The file is still the parent's. The parent may do this in the meantime.
        slot.publish(&identity(9));
        slot.sent.bytes.add(1);
        registry.after_fork_in_child().expect("a file for the child");
        let pid = std::process::id();
        let snapshot = folder.read();
        let ours = snapshot.processes.iter().find(|p| p.pid == pid).expect("the child");
        assert_eq!(ours.connections.iter().map(|c| c.fd).collect::<Vec<_>>(), [7]);
        assert_eq!(ours.connections[0].sent.bytes, 100);
        registry.remove();
        0
    });
    assert_eq!(status, 0);
    registry.after_fork_in_parent();
    let parent = folder.only_process();
    assert_eq!(parent.connections.iter().map(|c| c.fd).collect::<Vec<_>>(), [9]);
    assert_eq!(parent.connections[0].sent.bytes, 101);
}

#[test]
fn a_fork_child_that_hides_is_seen_once_it_appears() {
    let folder = Folder::new();
    let mut registry = folder.registry().expect("open");
    let slot = registry.allocate().expect("a slot");
    slot.publish(&identity(7));
    slot.sent.bytes.add(100);
    registry.before_fork();
    let status = in_child(|| {
        assert!(registry.hide_in_fork_child());
        let pid = std::process::id();
        let ours = || folder.read().processes.into_iter().find(|p| p.pid == pid);
        assert!(ours().is_none());
        slot.sent.bytes.add(11);
        registry.allocate().expect("a slot").publish(&identity(8));
        registry.remove();

        registry.appear().expect("a file for the child");
        let ours = ours().expect("the child");
        assert_eq!(ours.program, "some-program");
        assert_eq!(ours.connections.iter().map(|c| c.fd).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(ours.connections[0].sent.bytes, 111);
        registry.remove();
        0
    });
    assert_eq!(status, 0);
    registry.after_fork_in_parent();
    assert_eq!(folder.only_process().connections[0].sent.bytes, 100);
}

#[test]
fn a_fork_child_without_a_file_keeps_valid_slots_of_its_own() {
    let folder = Folder::new();
    let mut registry = folder.registry().expect("open");
    let slot = registry.allocate().expect("a slot");
    slot.publish(&identity(7));
    slot.sent.bytes.add(100);
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).expect("chmod");

    let status = in_child(|| {
        let error = registry.after_fork_in_child().expect_err("others may read the folder");
        assert!(error.to_string().contains("chmod 711"), "{error}");
        assert_eq!(slot.sent.bytes.get(), 100);
        slot.sent.bytes.add(11);
        assert!(registry.allocate().is_some());
        // A grandchild finds the folder as it should be and is seen again.
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o711)).expect("chmod");
        in_child(|| {
            registry.after_fork_in_child().expect("a file for the grandchild");
            let pid = std::process::id();
            let found = folder.read().processes.into_iter().find(|p| p.pid == pid);
            assert_eq!(found.expect("the grandchild").connections[0].sent.bytes, 111);
            registry.remove();
            0
        })
    });
    assert_eq!(status, 0);
    assert_eq!(folder.only_process().connections[0].sent.bytes, 100);
}

#[test]
fn a_child_that_has_not_renewed_removes_nothing() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    assert_eq!(
        in_child(|| {
            registry.remove();
            0
        }),
        0
    );
    assert!(folder.file().exists());
}

#[test]
fn files_of_dead_processes_are_removed_by_readers_and_writers() {
    for by_reader in [true, false] {
        let folder = Folder::new();
        let dead = |folder: &Folder| {
            let status = in_child(|| i32::from(folder.registry().is_err()));
            assert_eq!(status, 0);
            assert_eq!(fs::read_dir(&folder.0).expect("folder").count(), 1);
        };
        dead(&folder);
        if by_reader {
            let snapshot = folder.read();
            assert_eq!((snapshot.processes, snapshot.problems), (vec![], vec![]));
            assert_eq!(fs::read_dir(&folder.0).expect("folder").count(), 0);
        } else {
            let _registry = folder.registry().expect("open");
            assert_eq!(fs::read_dir(&folder.0).expect("folder").count(), 1);
            assert!(folder.file().exists());
        }
    }
}
