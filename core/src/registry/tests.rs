//! The registry as a whole: writer, reader, fork, and files that are not what they should be.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{symlink, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::folder::FolderPath;
use super::layout::{Header, FILE_SIZE, HEADER_SIZE, SLOT_SIZE};
use super::writer::CAPACITY;
use super::*;
use crate::reason::Reason;

/// A registry folder that is removed at the end of a test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/dev/shm/sanshim-test-{}-{number}", std::process::id());
        Folder(PathBuf::from(path))
    }

    fn registry(&self) -> Result<Registry, RegistryError> {
        let path = FolderPath::new(format_args!("{}", self.0.display()))?;
        Registry::open_in(path, kernel::effective_user(), b"some-program")
    }

    fn file(&self) -> PathBuf {
        self.0.join(std::process::id().to_string())
    }

    fn read(&self) -> Snapshot {
        read_folder(&self.0)
    }

    fn only_process(&self) -> Process {
        let snapshot = self.read();
        assert_eq!(snapshot.problems, []);
        let [process] = <[_; 1]>::try_from(snapshot.processes).expect("one process");
        process
    }

    fn only_problem(&self) -> String {
        let snapshot = self.read();
        assert_eq!(snapshot.processes, []);
        let [problem] = <[_; 1]>::try_from(snapshot.problems).expect("one problem");
        problem.why
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("valid address")
}

fn identity(fd: i32) -> Identity {
    Identity {
        fd,
        local: address("127.0.0.1:4000"),
        peer: address("[fe80::1%3]:65535"),
        provider: Provider::Shm,
        reason: Reason::OnSan,
        state: State::Established,
    }
}

/// Runs `body` in a fork child and returns its exit status; a panic there is 101.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child uses only the registry (made for fork children) and ends with _exit.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            let body = std::panic::AssertUnwindSafe(body);
            let status = std::panic::catch_unwind(body).unwrap_or(101);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(status) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "child ended with status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn what_is_published_is_read() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    let slot = registry.allocate().expect("a slot");
    assert_eq!(folder.only_process().connections, [], "visible before it is published");

    slot.publish(&identity(7));
    slot.sent.bytes.add(1000);
    slot.sent.messages.add(2);
    slot.received.bytes.add(u64::MAX);
    slot.received.messages.add(3);
    slot.wakeups_sent.add(4);
    slot.wakeups_avoided.add(5);
    slot.wakeups_received.add(6);
    slot.credits.set(9);
    slot.credits.set(8);
    slot.credit_updates_sent.add(10);
    slot.buffered_bytes.set(11);

    let process = folder.only_process();
    assert_eq!(process.pid, std::process::id());
    assert_eq!(process.uid, kernel::effective_user());
    assert_eq!(process.program, "some-program");
    let expected = Connection {
        fd: 7,
        local: address("127.0.0.1:4000"),
        peer: address("[fe80::1%3]:65535"),
        provider: Provider::Shm,
        reason: Reason::OnSan,
        state: State::Established,
        sent: Traffic { bytes: 1000, messages: 2 },
        received: Traffic { bytes: u64::MAX, messages: 3 },
        wakeups_sent: 4,
        wakeups_avoided: 5,
        wakeups_received: 6,
        credits: 8,
        credit_updates_sent: 10,
        buffered_bytes: 11,
    };
    assert_eq!(process.connections, [expected]);

    slot.set_fd(8);
    slot.set_state(State::CloseWait);
    slot.set_provider(Provider::Tcp);
    slot.set_reason(Reason::Withdrawn);
    let changed = &folder.only_process().connections[0];
    assert_eq!(
        (changed.fd, changed.state, changed.provider, changed.reason),
        (8, State::CloseWait, Provider::Tcp, Reason::Withdrawn)
    );

    registry.release(slot);
    assert_eq!(folder.only_process().connections, []);
    registry.remove();
    assert!(!folder.file().exists());
}

#[test]
fn a_reused_slot_starts_from_zero() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    let first = registry.allocate().expect("a slot");
    first.publish(&identity(7));
    first.sent.bytes.add(1000);
    first.credits.set(5);
    registry.release(first);
    let second = registry.allocate().expect("a slot");
    assert!(std::ptr::eq(first, second), "the lowest free slot");
    assert_eq!((second.sent.bytes.get(), second.credits.get()), (0, 0));
}

#[test]
fn a_full_table_refuses_and_recovers() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    let slots: Vec<_> = std::iter::from_fn(|| registry.allocate()).collect();
    assert_eq!(slots.len(), CAPACITY);
    slots.last().expect("a slot").publish(&identity(3));
    assert_eq!(folder.only_process().connections.len(), 1);
    registry.release(slots[100]);
    assert!(std::ptr::eq(registry.allocate().expect("the one freed"), slots[100]));
    assert!(registry.allocate().is_none());
}

#[test]
fn threads_never_get_the_same_slot() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    let mut addresses: Vec<usize> = std::thread::scope(|scope| {
        let allocate = || (0..500).map(|_| registry.allocate().expect("a slot"));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    allocate().map(|s| std::ptr::from_ref(s).addr()).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 2000);
}

#[test]
fn the_spare_slot_counts_and_is_never_released() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    let before = spare().sent.bytes.get();
    spare().sent.bytes.add(1);
    registry.release(spare());
    assert_eq!(spare().sent.bytes.get(), before + 1);
    let first = registry.allocate().expect("a slot");
    let second = registry.allocate().expect("a slot");
    assert!(!std::ptr::eq(first, second));
}

#[test]
fn an_idle_file_is_sparse_and_private() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    registry.allocate().expect("a slot").publish(&identity(7));
    let _ = folder.read();
    let file = fs::metadata(folder.file()).expect("the file");
    assert_eq!(file.len(), FILE_SIZE as u64);
    assert!(file.blocks() * 512 <= 64 * 1024, "{} blocks", file.blocks());
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    let opened = fs::metadata(&folder.0).expect("the folder");
    assert_eq!(opened.permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_reader_never_sees_a_mixture_of_two_connections() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    let slot = registry.allocate().expect("a slot");
    let stop = AtomicBool::new(false);
    let one_of_two = |n: i32| Identity {
        fd: n,
        local: SocketAddr::new([10, 0, 0, n as u8].into(), n as u16),
        peer: SocketAddr::new([10, 0, 0, n as u8].into(), n as u16),
        ..identity(n)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                slot.publish(&one_of_two(1));
                slot.publish(&one_of_two(2));
            }
        });
        for _ in 0..2000 {
            for connection in folder.only_process().connections {
                let Connection { fd, local, peer, .. } = connection;
                let expected = one_of_two(fd);
                assert_eq!((local, peer), (expected.local, expected.peer));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

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
fn a_fork_child_without_a_file_keeps_valid_slots_of_its_own() {
    let folder = Folder::new();
    let mut registry = folder.registry().expect("open");
    let slot = registry.allocate().expect("a slot");
    slot.publish(&identity(7));
    slot.sent.bytes.add(100);
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).expect("chmod");

    let status = in_child(|| {
        let error = registry.after_fork_in_child().expect_err("others may enter the folder");
        assert!(error.to_string().contains("chmod 700"), "{error}");
        assert_eq!(slot.sent.bytes.get(), 100);
        slot.sent.bytes.add(11);
        assert!(registry.allocate().is_some());
        // A grandchild finds the folder as it should be and is seen again.
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).expect("chmod");
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

/// Puts a number into the header of this process's file.
fn patch(folder: &Folder, offset: usize, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(folder.file()).expect("the file");
    file.write_all_at(bytes, offset as u64).expect("write");
}

#[test]
fn a_process_id_used_again_or_another_program_counts_as_dead() {
    let offsets =
        [std::mem::offset_of!(Header, start_time), std::mem::offset_of!(Header, executable)];
    for offset in offsets {
        let folder = Folder::new();
        let _registry = folder.registry().expect("open");
        patch(&folder, offset, &1u64.to_ne_bytes());
        let snapshot = folder.read();
        assert_eq!((snapshot.processes, snapshot.problems), (vec![], vec![]));
        assert!(!folder.file().exists());
    }
}

#[test]
fn another_pid_namespace_is_reported_and_left_alone() {
    let folder = Folder::new();
    let _registry = folder.registry().expect("open");
    patch(&folder, std::mem::offset_of!(Header, pid_namespace), &1u64.to_ne_bytes());
    assert!(folder.only_problem().contains("another pid namespace"));
    assert!(folder.file().exists());
}

#[test]
fn corrupt_headers_are_reported() {
    let cases: [(usize, u32, &str); 7] = [
        (std::mem::offset_of!(Header, magic), 1, "no registry file"),
        (std::mem::offset_of!(Header, version), 2, "version 2"),
        (std::mem::offset_of!(Header, header_size), 0, "corrupt: sizes"),
        (std::mem::offset_of!(Header, slot_size), u32::MAX, "corrupt: sizes"),
        (std::mem::offset_of!(Header, capacity), 1, "corrupt: sizes"),
        (std::mem::offset_of!(Header, high_water), u32::MAX, "slots in use"),
        (std::mem::offset_of!(Header, pid), 1, "says process 1"),
    ];
    for (offset, value, expected) in cases {
        let folder = Folder::new();
        let _registry = folder.registry().expect("open");
        patch(&folder, offset, &value.to_ne_bytes());
        let why = folder.only_problem();
        assert!(why.contains(expected), "{why}");
        assert!(folder.file().exists(), "{why}: not ours to remove");
    }
}

#[test]
fn files_of_the_wrong_kind_or_size_are_reported() {
    let own = std::process::id().to_string();
    type Make = fn(&Path);
    let cases: [(&str, Make); 7] = [
        ("shorter than its header", |path| drop(fs::File::create(path).expect("create"))),
        ("shorter than its header", |path| fs::write(path, [0; 100]).expect("write")),
        ("no registry file", |path| fs::write(path, vec![0; FILE_SIZE]).expect("write")),
        ("no registry file", |path| fs::write(path, vec![0xff; FILE_SIZE]).expect("write")),
        ("symbolic link", |path| symlink("/etc/passwd", path).expect("link")),
        ("not a regular file", |path| fs::create_dir(path).expect("mkdir")),
        ("not a regular file", |path| {
            let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("path");
            // SAFETY: a NUL-terminated path.
            assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        }),
    ];
    for (expected, make) in cases {
        let folder = Folder::new();
        fs::create_dir(&folder.0).expect("mkdir");
        make(&folder.0.join(&own));
        let why = folder.only_problem();
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn a_truncated_table_is_reported() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    registry.allocate().expect("a slot").publish(&identity(7));
    // Cut by another process: this one's mapping would raise SIGBUS if it stored there again.
    let file = fs::OpenOptions::new().write(true).open(folder.file()).expect("the file");
    file.set_len(HEADER_SIZE as u64 + 10).expect("truncate");
    assert!(folder.only_problem().contains("shorter than its table"));
}

#[test]
fn a_corrupt_slot_is_skipped_and_the_others_are_shown() {
    let fields =
        [(8 + 4, "state"), (8 + 8, "provider"), (8 + 12, "reason"), (40, "local"), (64, "peer")];
    for (offset, name) in fields {
        let folder = Folder::new();
        let registry = folder.registry().expect("open");
        for fd in [7, 8, 9] {
            registry.allocate().expect("a slot").publish(&identity(fd));
        }
        patch(&folder, HEADER_SIZE + SLOT_SIZE + offset, &u32::MAX.to_ne_bytes());
        let snapshot = folder.read();
        let fds: Vec<_> = snapshot.processes[0].connections.iter().map(|c| c.fd).collect();
        assert_eq!(fds, [7, 9], "{name}");
        assert_eq!(snapshot.problems.len(), 1, "{name}");
        assert!(snapshot.problems[0].why.contains(name), "{}", snapshot.problems[0]);
    }
}

#[test]
fn a_slot_whose_writer_stopped_half_way_is_left_out() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    for fd in [7, 8] {
        registry.allocate().expect("a slot").publish(&identity(fd));
    }
    patch(&folder, HEADER_SIZE, &5u64.to_ne_bytes());
    let fds: Vec<_> = folder.only_process().connections.iter().map(|c| c.fd).collect();
    assert_eq!(fds, [8]);
}

#[test]
fn a_folder_that_is_not_private_is_refused() {
    let open_to_others = Folder::new();
    fs::create_dir(&open_to_others.0).expect("mkdir");
    fs::set_permissions(&open_to_others.0, fs::Permissions::from_mode(0o750)).expect("chmod");

    let link = Folder::new();
    let target = Folder::new();
    fs::create_dir(&target.0).expect("mkdir");
    symlink(&target.0, &link.0).expect("link");

    let file = Folder::new();
    fs::write(&file.0, "").expect("write");

    for folder in [&open_to_others, &link, &file] {
        let error = folder.registry().expect_err("refused");
        assert!(matches!(error, RegistryError::NotPrivate { .. }), "{error}");
        assert!(error.to_string().contains(folder.0.to_str().expect("text")), "{error}");
    }
    let _ = fs::remove_file(&link.0);
    let _ = fs::remove_file(&file.0);
}

#[test]
fn another_owners_folder_is_refused() {
    let folder = Folder::new();
    let path = FolderPath::new(format_args!("{}", folder.0.display())).expect("short");
    let error = Registry::open_in(path, kernel::effective_user() + 1, b"").expect_err("refused");
    assert!(matches!(error, RegistryError::NotPrivate { .. }), "{error}");
}

#[test]
fn a_file_size_limit_is_an_error_and_not_a_signal() {
    let folder = Folder::new();
    let status = in_child(|| {
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
        // SAFETY: a valid limit; this child's alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let error = folder.registry().expect_err("no room");
        assert!(error.to_string().contains("ulimit -f"), "{error}");
        0
    });
    assert_eq!(status, 0);
}

#[test]
fn a_missing_folder_reads_as_a_problem_and_not_a_crash() {
    let snapshot = read_folder(Path::new("/dev/shm/sanshim-test-missing"));
    assert_eq!(snapshot.processes, []);
    assert_eq!(snapshot.problems.len(), 1);
}
