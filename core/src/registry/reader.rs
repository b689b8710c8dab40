//! The reader of one process's file: its connections, as `sanctl` shows them.
//!
//! Another process wrote what is in a file. So the reader checks sizes and values. It reports what makes no sense, and
//! skips it.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::admission::Admitted;
use super::container::Container;
use super::control::ControlStatus;
use super::file::{fill, validate, zeroed};
use super::layout::{RegistryHeader, HEADER_SIZE, PROGRAM_SIZE, SLOT_SIZE};
use super::mounts::{FolderIdentity, Mounts};
use super::numbers::{namespace_of, Numbers};
use super::place::{self, RegistryPlace};
use super::publisher::Publisher;
use super::slot::{Provider, Slot, State};
use super::totals::Totals;
use super::transfers::TransferStatus;
use crate::reason::Reason;

/// How many times a table is read at most. It is read again when connections in it were changing.
const ATTEMPTS: usize = 5;

/// All that could be read, and what could not.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Live processes under the shim, by process id.
    pub processes: Vec<Process>,
    /// Files that were skipped.
    pub problems: Vec<Problem>,
}

/// A process under the shim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Process id, as it is here.
    pub pid: u32,
    /// The process id that it has itself, if it is in another PID namespace.
    pub own_pid: Option<u32>,
    /// The container that it is in, if that is not the caller's.
    pub container: Option<Container>,
    /// Inode of its network namespace; `None` if the caller may not know.
    pub network: Option<u64>,
    /// Effective user when the process joined.
    pub uid: u32,
    /// The file it publishes in.
    pub file: RegistryPlace,
    /// Its name, at most 64 bytes. It may hold any character.
    pub program: String,
    /// Its connections, in the order of their descriptors.
    pub connections: Vec<Connection>,
    /// How many connections went back to TCP for each reason, closed ones included. In the order of the reasons'
    /// numbers. A reason that never occurred is left out.
    pub returned: Vec<(Reason, u64)>,
    /// Bytes of memory that its segments have or may touch, and that they may have; `None` where nothing limits them.
    pub budget: Option<(u64, u64)>,
    /// What its connections have done together, closed ones too.
    pub totals: Totals,
    /// With whom it shares memory, besides its own user and root.
    pub admitted: Admitted,
}

/// A connection or a listening socket of a process. Its counts are of what this process did since it got the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The connection's number, as the process's [events](super::Noted) name it; `None` if the process does not publish
    /// it.
    pub number: Option<usize>,
    /// The program's descriptor.
    pub fd: RawFd,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address. For a listener it is unspecified, with port 0.
    pub peer: SocketAddr,
    /// What carries the bytes.
    pub provider: Provider,
    /// Why it is carried so.
    pub reason: Reason,
    /// Where it is in its life.
    pub state: State,
    /// What tells that another end is of the same connection, whatever its addresses: [`Ends`](super::Ends) compares it.
    pub session: Option<u64>,
    /// What was sent.
    pub sent: DirectionTraffic,
    /// What was received.
    pub received: DirectionTraffic,
    /// Kernel calls made to wake the peer.
    pub wakeups_sent: u64,
    /// Events that needed no such call.
    pub wakeups_avoided: u64,
    /// Wake-ups from the peer.
    pub wakeups_received: u64,
    /// Send credit at the moment.
    pub credits: u64,
    /// Credit updates sent.
    pub credit_updates_sent: u64,
    /// Bytes in the send buffer at the moment.
    pub buffered_bytes: u64,
    /// The process that controls sending.
    pub send_control: ControlStatus,
    /// The process that controls receiving.
    pub receive_control: ControlStatus,
    /// Times this process suspended the session to take control.
    pub suspensions: u64,
    /// How long (ns) all these suspensions took.
    pub suspended: u64,
    /// What is known of RDMA, its modes, and the sizes of buffers.
    pub transfers: TransferStatus,
}

/// What went in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionTraffic {
    /// Bytes of the program's stream.
    pub bytes: u64,
    /// Messages of the session.
    pub messages: u64,
}

/// A file or folder that was skipped, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file or folder.
    pub path: PathBuf,
    /// Why it was skipped, and what can be done.
    pub why: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

/// Where a file was found.
pub(super) struct Spot<'a> {
    /// The path is in the root of this process, if it is not in the caller's.
    pub(super) root: Option<u32>,
    pub(super) path: &'a Path,
    /// The shared memory that it lies in, if that matters.
    pub(super) shared: Option<FolderIdentity>,
}

/// What the reader knows of processes.
pub(super) struct ProcessSight<'a> {
    pub(super) numbers: Numbers,
    pub(super) mounts: &'a Mounts,
}

/// What one file told.
pub(super) enum FileOutcome {
    /// The process lives. The text tells what was wrong with some of its connections.
    Alive(Box<Process>, Option<String>),
    /// The process has ended, or has become another program. Where its file was.
    Ended(RegistryPlace),
    /// The process lives, and cannot be seen from here.
    Elsewhere,
    Skipped(String),
}

/// Reads the file of a process.
///
/// # Errors
/// Those of the file; not found if its process has ended in this moment.
pub(super) fn read_file(
    spot: &Spot<'_>,
    publisher: Publisher,
    sight: &mut ProcessSight<'_>,
) -> io::Result<FileOutcome> {
    let skipped = |why: String| Ok(FileOutcome::Skipped(why));
    let file = match place::open(spot.root, spot.path, false) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return skipped("is a symbolic link; remove it".into());
        }
        result => result?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return skipped("is not a regular file; remove it".into());
    }
    let mut headers = zeroed::<RegistryHeader>(1);
    if fill(&file, &mut headers, 0)? != HEADER_SIZE {
        return skipped("is shorter than its header; remove it".into());
    }
    let header = &headers[0];
    if let Err(why) = validate(header, publisher) {
        return skipped(why);
    }
    let near = sight.numbers.are_of(publisher).then_some(publisher.pid);
    let place = RegistryPlace {
        path: spot.path.to_owned(),
        root: spot.root,
        shared: spot.shared,
        publisher,
        near,
        identity: (metadata.dev(), metadata.ino()),
    };
    if place.has_ended(&file, header) {
        return Ok(FileOutcome::Ended(place));
    }
    let Some(pid) = sight.numbers.here(publisher) else { return Ok(FileOutcome::Elsewhere) };
    if spot.shared.is_some_and(|shared| !sight.mounts.has(pid, shared)) {
        return skipped(format!(
            "says that it is of process {pid}, which does not have this /dev/shm"
        ));
    }
    if !may_publish(metadata.uid(), pid) {
        return skipped(format!(
            "says that it is of process {pid}, which is another user's; remove it"
        ));
    }
    let count = header.high_water.load(Ordering::Relaxed) as usize;
    let Some((connections, problem)) = connections(&file, count)? else {
        return skipped("is shorter than its table; remove it".into());
    };
    let (returned, totals) = (returned(header), Totals::of(&header.closed, &connections));
    let process = Process {
        pid,
        own_pid: near.is_none().then_some(publisher.pid),
        container: Container::of(pid),
        network: namespace_of(pid, "net"),
        uid: metadata.uid(),
        file: place,
        program: program(header),
        connections,
        returned,
        budget: budget(header),
        totals,
        admitted: header.admission.read(),
    };
    Ok(FileOutcome::Alive(Box::new(process), problem))
}

/// True if a file of that user may be the process's: it is his, or was root's when it made the file, be it root of the
/// process's user namespace alone.
fn may_publish(uid: u32, pid: u32) -> bool {
    // Where /proc does not tell, the reader sees its own user's processes alone.
    let Ok(status) = fs::read(format!("/proc/{pid}/status")) else { return true };
    let status = String::from_utf8_lossy(&status);
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = users.and_then(|users| users.split_whitespace().nth(1)?.parse().ok());
    let is_his = effective.is_none_or(|effective: u32| effective == uid);
    uid == 0 || is_his || root_of(pid) == Some(uid)
}

/// The user who is root in the user namespace of a process.
fn root_of(pid: u32) -> Option<u32> {
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).ok()?;
    map.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (there, here) = (words.next()?, words.next()?);
        (there == "0").then(|| here.parse().ok())?
    })
}

fn budget(header: &RegistryHeader) -> Option<(u64, u64)> {
    let [taken, most] = [0, 1].map(|at: usize| header.budget[at].load(Ordering::Relaxed));
    (most != 0).then_some((taken, most))
}

fn returned(header: &RegistryHeader) -> Vec<(Reason, u64)> {
    let counts = header.returned.iter().map(|count| count.load(Ordering::Relaxed));
    (0..)
        .zip(counts)
        .filter_map(|(number, count)| Some((Reason::from_u32(number)?, count)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn program(header: &RegistryHeader) -> String {
    let mut bytes = [0; PROGRAM_SIZE];
    for (part, word) in bytes.chunks_exact_mut(8).zip(&header.program) {
        part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(PROGRAM_SIZE);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The connections in the first `count` slots, and what was wrong with one that was skipped. `None` when the file is
/// too short.
///
/// The table is read three times. The identities come from the second reading. They count only where the first and the
/// third one found the same even sequence number, so that nothing changed meanwhile.
fn connections(file: &File, count: usize) -> io::Result<Option<(Vec<Connection>, Option<String>)>> {
    let mut readings = [zeroed::<Slot>(count), zeroed(count), zeroed(count)];
    let mut settled = vec![false; count];
    let mut found = Vec::new();
    let mut problem = None;
    for _ in 0..ATTEMPTS {
        for reading in &mut readings {
            if fill(file, reading, HEADER_SIZE as u64)? != count * SLOT_SIZE {
                return Ok(None);
            }
        }
        let [before, middle, after] = &readings;
        for index in 0..count {
            let sequence = before[index].stable_sequence();
            if settled[index] || sequence.is_none() || sequence != after[index].stable_sequence() {
                continue;
            }
            settled[index] = true;
            if !middle[index].is_hidden() {
                match connection(Some(index), &middle[index]) {
                    Ok(connection) => found.push(connection),
                    Err(field) => {
                        problem =
                            Some(format!("connection skipped: slot {index} has no valid {field}"));
                    }
                }
            }
        }
        if settled.iter().all(|&settled| settled) {
            break;
        }
    }
    found.sort_by_key(|connection| connection.fd);
    Ok(Some((found, problem)))
}

/// What a slot publishes.
pub(super) fn connection(number: Option<usize>, slot: &Slot) -> Result<Connection, &'static str> {
    let identity = slot.identity()?;
    Ok(Connection {
        number,
        fd: identity.fd,
        local: identity.local,
        peer: identity.peer,
        provider: identity.provider,
        reason: identity.reason,
        state: identity.state,
        session: slot.session(),
        sent: DirectionTraffic { bytes: slot.sent.bytes.get(), messages: slot.sent.messages.get() },
        received: DirectionTraffic {
            bytes: slot.received.bytes.get(),
            messages: slot.received.messages.get(),
        },
        wakeups_sent: slot.wakeups_sent.get(),
        wakeups_avoided: slot.wakeups_avoided.get(),
        wakeups_received: slot.wakeups_received.get(),
        credits: slot.credits.get(),
        credit_updates_sent: slot.credit_updates_sent.get(),
        buffered_bytes: slot.buffered_bytes.get(),
        send_control: slot.send_control.read(),
        receive_control: slot.receive_control.read(),
        suspensions: slot.suspensions.get(),
        suspended: slot.suspended.get(),
        transfers: slot.transfers.read()?,
    })
}

/// Reads a file of arbitrary content.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz_file(place: &RegistryPlace) {
    let spot = Spot { root: None, path: &place.path, shared: None };
    let mounts = Mounts::default();
    let mut sight = ProcessSight { numbers: Numbers::new(), mounts: &mounts };
    let read = read_file(&spot, place.publisher, &mut sight);
    if let Ok(FileOutcome::Alive(process, _)) = read {
        let _ = format!("{process:?}");
    }
}
