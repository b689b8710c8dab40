//! The registry as a whole: what a writer publishes is what a reader sees.

mod events;
mod fork;
mod invalid;
mod namespaces;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::folder::FolderPath;
use super::layout::FILE_SIZE;
use super::publisher::Publisher;
use super::writer::CAPACITY;
use super::*;
use crate::reason::Reason;
use crate::session::Mode;

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
        self.0.join(own().to_string())
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

/// This process, as a file's name says it.
fn own() -> Publisher {
    Publisher::of_this_process().expect("a /proc")
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

/// Runs `body` in a fork child, and gives its exit status. A panic there is 101.
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

/// Publishes a connection with a number of its own in each place.
fn publish_numbers(slot: &Slot) {
    slot.publish(&identity(7));
    slot.set_session(7, true);
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
    slot.send_control.taken(23);
    slot.receive_control.taken(24);
    slot.suspensions.add(25);
    slot.suspended.add(26);
    let transfers = &slot.transfers;
    transfers.sent.add(500);
    transfers.received.add(501);
    transfers.mode.set(Mode::SmallThenLarge as u64);
    for (gauge, value) in transfers.behaviours.iter().zip([12, 13, 14]) {
        gauge.set(value);
    }
    transfers.threshold.set(15);
    transfers.message_size.set(16);
    transfers.send_buffer.set(17);
    transfers.fragmented.add(18);
    transfers.resizes.set(19);
    transfers.scans.set(20);
    transfers.advertisements_used.set(21);
    transfers.advertisements_dropped.set(22);
}

/// What a reader has to see of it, while one thread waits to send.
fn published_numbers() -> Connection {
    Connection {
        number: Some(0),
        fd: 7,
        local: address("127.0.0.1:4000"),
        peer: address("[fe80::1%3]:65535"),
        provider: Provider::Shm,
        reason: Reason::OnSan,
        state: State::Established,
        session: Some(15),
        sent: DirectionTraffic { bytes: 1000, messages: 2 },
        received: DirectionTraffic { bytes: u64::MAX, messages: 3 },
        wakeups_sent: 4,
        wakeups_avoided: 5,
        wakeups_received: 6,
        credits: 8,
        credit_updates_sent: 10,
        buffered_bytes: 11,
        send_control: ControlStatus { taken: 23, waiting: 1 },
        receive_control: ControlStatus { taken: 24, waiting: 0 },
        suspensions: 25,
        suspended: 26,
        transfers: TransferStatus {
            sent: 500,
            received: 501,
            mode: Mode::SmallThenLarge,
            behaviours: [12, 13, 14],
            threshold: Some(15),
            message_size: 16,
            send_buffer: 17,
            fragmented: 18,
            resizes: 19,
            scans: 20,
            advertisements_used: 21,
            advertisements_dropped: 22,
        },
    }
}

#[test]
fn what_is_published_is_read() {
    let folder = Folder::new();
    let registry = folder.registry().expect("open");
    let slot = registry.allocate().expect("a slot");
    assert_eq!(folder.only_process().connections, [], "visible before it is published");

    publish_numbers(slot);
    let process = slot.send_control.while_waiting(|| folder.only_process());
    assert_eq!(process.pid, std::process::id());
    assert_eq!(process.uid, kernel::effective_user());
    assert_eq!(process.program, "some-program");
    assert_eq!(process.connections, [published_numbers()]);

    slot.transfers.threshold.set(0);
    slot.set_fd(8);
    slot.set_state(State::CloseWait);
    slot.set_provider(Provider::Tcp);
    slot.set_reason(Reason::Quiet);
    let changed = &folder.only_process().connections[0];
    assert_eq!(
        (changed.fd, changed.state, changed.provider, changed.reason),
        (8, State::CloseWait, Provider::Tcp, Reason::Quiet)
    );
    assert_eq!(changed.transfers.threshold, None);

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
    first.transfers.mode.set(Mode::SmallReceive as u64);
    first.transfers.fragmented.add(6);
    registry.release(first);
    let second = registry.allocate().expect("a slot");
    assert!(std::ptr::eq(first, second), "the lowest free slot");
    assert_eq!((second.sent.bytes.get(), second.credits.get()), (0, 0));
    let transfers = &second.transfers;
    assert_eq!((transfers.mode.get(), transfers.fragmented.get()), (Mode::Discovery as u64, 0));
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
    assert_eq!(opened.permissions().mode() & 0o777, 0o711);
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

/// What many killed processes left, sixteen that start remove.
#[test]
fn many_files_of_killed_processes_are_removed_in_time() {
    const KILLED: u32 = 300;
    let folder = Folder::new();
    let registry = folder.registry().expect("a registry");
    let header = fs::read(folder.file()).expect("its file")[..4096].to_vec();
    // No process has an id as large as these.
    for number in 0..KILLED {
        let pid = i32::MAX as u32 - number;
        let name = Publisher { pid, ..own() }.to_string();
        fs::write(folder.0.join(name), &header).expect("a file");
    }
    let path = FolderPath::new(format_args!("{}", folder.0.display())).expect("a path");
    for turn in 100..116 {
        let opened = path.open(kernel::effective_user()).expect("the folder");
        sweep::sweep(&opened, own().namespace, turn);
    }
    let left: Vec<_> = fs::read_dir(&folder.0).expect("the folder").flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    drop(registry);
}
