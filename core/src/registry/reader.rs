//! The reader: every process's connections, as `sanctl` shows them.
//!
//! Another process wrote what is in a file. So sizes and values are checked, and what makes no sense is reported and
//! skipped.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::admission::Admitted;
use super::control::ControlStatus;
use super::file::{fill, validate, zeroed};
use super::layout::{Header, HEADER_SIZE, PROGRAM_SIZE, SLOT_SIZE};
use super::numbers::Numbers;
use super::place::{self, Place};
use super::publisher::Publisher;
use super::slot::{Provider, Slot, State};
use super::totals::Totals;
use super::transfers::TransferStatus;
use crate::reason::Reason;
use crate::sys::user_folder::{self, UserFolder};

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
    /// Effective user when the process joined.
    pub uid: u32,
    /// The file it publishes in.
    pub file: Place,
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
    /// What was sent.
    pub sent: Traffic,
    /// What was received.
    pub received: Traffic,
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
    /// Who controls sending.
    pub send_control: ControlStatus,
    /// Who controls receiving.
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
pub struct Traffic {
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

/// Reads every folder that the caller may see: that of its own user, or those of all users if it is root. Removes the
/// files of processes that have ended, if they belong to the caller. Connections that were never busy are taken from the
/// kernel.
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
    let mut snapshot = Snapshot::default();
    // SAFETY: no memory is involved.
    let user = unsafe { libc::geteuid() };
    if user != 0 {
        if let Some(folder) = UserFolder::find(user) {
            snapshot.add_folder(Path::new(folder.as_str()), Some(user));
        }
    } else {
        let shared = OsStr::from_bytes(user_folder::SHARED_MEMORY.to_bytes());
        let entries = fs::read_dir(shared).into_iter().flatten().flatten();
        for entry in entries {
            if let Some(owner) = folder_owner(&entry.file_name()) {
                snapshot.add_folder(&entry.path(), Some(owner));
            }
        }
    }
    snapshot.sort();
    snapshot
}

/// Reads one folder, whoever owns it.
pub fn read_folder(folder: &Path) -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.add_folder(folder, None);
    snapshot.sort();
    snapshot
}

/// The user in a folder's name.
fn folder_owner(name: &OsStr) -> Option<u32> {
    user_folder::user_in(name.to_str()?.strip_prefix(user_folder::PREFIX)?)
}

/// What one file told.
enum Outcome {
    /// The process lives. The text tells what was wrong with some of its connections.
    Alive(Box<Process>, Option<String>),
    /// The process has ended, or has become another program. Where its file was.
    Ended(Place),
    /// The process lives, and cannot be seen from here.
    Elsewhere,
    Skipped(String),
}

impl Snapshot {
    fn sort(&mut self) {
        self.processes.sort_by_key(|process| process.pid);
        self.problems.sort_by(|a, b| a.path.cmp(&b.path));
    }

    fn add_folder(&mut self, folder: &Path, owner: Option<u32>) {
        if let Err(why) = self.try_add_folder(folder, owner) {
            self.problems.push(Problem { path: folder.to_owned(), why });
        }
    }

    fn try_add_folder(&mut self, folder: &Path, owner: Option<u32>) -> Result<(), String> {
        if let Some(owner) = owner {
            let found = fs::symlink_metadata(folder).map_err(|error| error.to_string())?;
            if !found.is_dir() || found.uid() != owner {
                // Anybody may make one of any name. What it says is nobody's.
                return Ok(());
            }
        }
        let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
        let (mut numbers, mut elsewhere) = (Numbers::new(), 0);
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(publisher) = Publisher::parse(name.as_bytes()) else { continue };
            let path = entry.path();
            match read_file(&path, publisher, &mut numbers) {
                Ok(Outcome::Alive(process, problem)) => {
                    self.processes.push(*process);
                    self.problems.extend(problem.map(|why| Problem { path, why }));
                }
                Ok(Outcome::Ended(place)) => remove_own(&place),
                Ok(Outcome::Elsewhere) => elsewhere += 1,
                Ok(Outcome::Skipped(why)) => self.problems.push(Problem { path, why }),
                // Its process has ended in this moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.problems.push(Problem { path, why: error.to_string() }),
            }
        }
        match elsewhere {
            0 => Ok(()),
            some => Err(format!(
                "{some} of its files belong to processes of other PID namespaces; run sanctl there, or where /proc shows them"
            )),
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

fn read_file(path: &Path, publisher: Publisher, numbers: &mut Numbers) -> io::Result<Outcome> {
    let skipped = |why: String| Ok(Outcome::Skipped(why));
    let file = match place::open(path, false) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return skipped("is a symbolic link; remove it".into());
        }
        result => result?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return skipped("is not a regular file; remove it".into());
    }
    let mut headers = zeroed::<Header>(1);
    if fill(&file, &mut headers, 0)? != HEADER_SIZE {
        return skipped("is shorter than its header; remove it".into());
    }
    let header = &headers[0];
    if let Err(why) = validate(header, publisher) {
        return skipped(why);
    }
    let near = numbers.are_of(publisher).then_some(publisher.pid);
    let identity = (metadata.dev(), metadata.ino());
    let place = Place { path: path.to_owned(), publisher, near, identity };
    if place.has_ended(&file, header) {
        return Ok(Outcome::Ended(place));
    }
    let Some(pid) = numbers.here(publisher) else { return Ok(Outcome::Elsewhere) };
    if !may_publish(metadata.uid(), pid) {
        return skipped(format!(
            "says that it is of process {pid}, which is another user's; remove it"
        ));
    }
    let count = header.high_water.load(Ordering::Relaxed) as usize;
    let Some((connections, problem)) = connections(&file, count)? else {
        return skipped("is shorter than its table; remove it".into());
    };
    let (returned, totals) = (returned(header), header.closed.with(&connections));
    let process = Process {
        pid,
        own_pid: near.is_none().then_some(publisher.pid),
        uid: metadata.uid(),
        file: place,
        program: program(header),
        connections,
        returned,
        budget: budget(header),
        totals,
        admitted: header.admission.read(),
    };
    Ok(Outcome::Alive(Box::new(process), problem))
}

/// True if a file of that user may be the process's: it is his, or was root's when it made the file.
fn may_publish(uid: u32, pid: u32) -> bool {
    // Where /proc does not tell, the reader sees its own user's processes alone.
    let Ok(status) = fs::read(format!("/proc/{pid}/status")) else { return true };
    let status = String::from_utf8_lossy(&status);
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = users.and_then(|users| users.split_whitespace().nth(1)?.parse().ok());
    uid == 0 || effective.is_none_or(|effective: u32| effective == uid)
}

fn budget(header: &Header) -> Option<(u64, u64)> {
    let [taken, most] = [0, 1].map(|at: usize| header.budget[at].load(Ordering::Relaxed));
    (most != 0).then_some((taken, most))
}

fn returned(header: &Header) -> Vec<(Reason, u64)> {
    let counts = header.returned.iter().map(|count| count.load(Ordering::Relaxed));
    (0..)
        .zip(counts)
        .filter_map(|(number, count)| Some((Reason::from_u32(number)?, count)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn program(header: &Header) -> String {
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
        sent: Traffic { bytes: slot.sent.bytes.get(), messages: slot.sent.messages.get() },
        received: Traffic {
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

/// What a file of any content tells.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz_file(place: &Place) {
    let read = read_file(&place.path, place.publisher, &mut Numbers::new());
    if let Ok(Outcome::Alive(process, _)) = read {
        let _ = format!("{process:?}");
    }
}
