//! Files, folders and machines that are not what they should be. They give errors, and never crashes.

use std::fs;
use std::io;
use std::os::unix::fs::{symlink, FileExt, PermissionsExt};
use std::path::Path;

use super::super::layout::{RegistryHeader, FILE_SIZE, HEADER_SIZE, SLOT_SIZE};
use super::*;

/// Puts a number into the header of this process's file.
fn patch(folder: &Folder, offset: usize, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(folder.file()).expect("the file");
    file.write_all_at(bytes, offset as u64).expect("write");
}

#[test]
fn a_process_id_used_again_or_another_program_counts_as_dead() {
    let offsets = [
        std::mem::offset_of!(RegistryHeader, start_time),
        std::mem::offset_of!(RegistryHeader, executable),
    ];
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
fn corrupt_headers_are_reported() {
    let cases: [(usize, u32, &str); 8] = [
        (std::mem::offset_of!(RegistryHeader, magic), 1, "no registry file"),
        (std::mem::offset_of!(RegistryHeader, version), 9, "version 9"),
        (std::mem::offset_of!(RegistryHeader, header_size), 0, "corrupt: sizes"),
        (std::mem::offset_of!(RegistryHeader, slot_size), u32::MAX, "corrupt: sizes"),
        (std::mem::offset_of!(RegistryHeader, capacity), 1, "corrupt: sizes"),
        (std::mem::offset_of!(RegistryHeader, high_water), u32::MAX, "slots in use"),
        (std::mem::offset_of!(RegistryHeader, pid), 1, "says process 1"),
        (std::mem::offset_of!(RegistryHeader, pid_namespace), 1, "says PID namespace 1"),
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
    let own = own().to_string();
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
    // As another process would cut it. If this one stored there again, its mapping would raise SIGBUS.
    let file = fs::OpenOptions::new().write(true).open(folder.file()).expect("the file");
    file.set_len(HEADER_SIZE as u64 + 10).expect("truncate");
    assert!(folder.only_problem().contains("shorter than its table"));
}

#[test]
fn a_corrupt_slot_is_skipped_and_the_others_are_shown() {
    let mode = std::mem::offset_of!(Slot, transfers) + std::mem::offset_of!(Transfers, mode);
    let fields = [
        (8 + 4, "state"),
        (8 + 8, "provider"),
        (8 + 12, "reason"),
        (40, "local"),
        (64, "peer"),
        (mode, "mode"),
    ];
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

/// Covers the registry's folder with a tmpfs of so many bytes, only for this process.
fn mount_small_tmpfs(folder: &Folder, size: &str) -> io::Result<()> {
    let path = std::ffi::CString::new(folder.0.to_str().expect("text")).expect("no NUL");
    let options = std::ffi::CString::new(format!("size={size},mode=0700")).expect("no NUL");
    let private = libc::MS_REC | libc::MS_PRIVATE;
    let none = std::ptr::null();
    // SAFETY: NUL-terminated strings, or NULL where the kernel ignores them.
    let mounted = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
            && libc::mount(
                c"tmpfs".as_ptr(),
                path.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                options.as_ptr().cast(),
            ) == 0
    };
    if mounted {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[test]
fn full_shared_memory_is_an_error_and_not_a_signal() {
    const NOT_PERMITTED: i32 = 77;
    let folder = Folder::new();
    fs::create_dir(&folder.0).expect("mkdir");
    let status = in_child(|| {
        match mount_small_tmpfs(&folder, "16k") {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return NOT_PERMITTED,
            result => result.expect("mount"),
        }
        let mut registry = folder.registry().expect("room for the header");
        let slots: Vec<_> = std::iter::from_fn(|| registry.allocate()).collect();
        assert!((16..=48).contains(&slots.len()), "{} slots in 12 KiB", slots.len());
        slots.iter().for_each(|slot| slot.publish(&identity(7)));
        slots[0].sent.bytes.add(100);
        registry.release(slots[1]);
        assert!(registry.allocate().is_some());
        in_child(|| {
            let error = registry.after_fork_in_child().expect_err("no room for a second file");
            assert!(matches!(error, RegistryError::Io { .. }), "{error}");
            assert!(error.to_string().contains("No space left"), "{error}");
            slots[0].sent.bytes.add(1);
            assert_eq!(slots[0].sent.bytes.get(), 101);
            assert_eq!(fs::read_dir(&folder.0).expect("folder").count(), 1);
            0
        })
    });
    if status == NOT_PERMITTED {
        eprintln!("not run: this user may not mount a tmpfs");
        return;
    }
    assert_eq!(status, 0);
}

#[test]
fn a_missing_folder_reads_as_a_problem_and_not_a_crash() {
    let snapshot = read_folder(Path::new("/dev/shm/sanshim-test-missing"));
    assert_eq!(snapshot.processes, []);
    assert_eq!(snapshot.problems.len(), 1);
}

#[test]
fn nobody_publishes_for_another_users_process() {
    const SOMEBODY: u32 = 12345;
    let folder = Folder::new();
    let _registry = folder.registry().expect("open");
    if kernel::effective_user() == 0 {
        // What root wrote is believed.
        std::os::unix::fs::chown(folder.file(), Some(SOMEBODY), None).expect("chown");
    } else {
        // Process 1 is root's.
        let first = folder.0.join(Publisher { pid: 1, ..own() }.to_string());
        fs::rename(folder.file(), &first).expect("rename");
        let file = fs::OpenOptions::new().write(true).open(&first).expect("open");
        let of_header = |offset: usize, bytes: &[u8]| file.write_all_at(bytes, offset as u64);
        of_header(std::mem::offset_of!(RegistryHeader, pid), &1u32.to_ne_bytes()).expect("write");
        for offset in [
            std::mem::offset_of!(RegistryHeader, start_time),
            std::mem::offset_of!(RegistryHeader, executable),
        ] {
            of_header(offset, &[0; 8]).expect("write");
        }
        of_header(std::mem::offset_of!(RegistryHeader, executable) + 8, &[0; 8]).expect("write");
    }
    let why = folder.only_problem();
    assert!(why.contains("another user's"), "{why}");
}
