//! Where processes find out which process has the other end of a connection: a file in each user's folder, for each
//! network namespace. Where the configuration names a folder, it has one file for all of the host. A hash of the
//! connection's addresses says where its entry lies. A new entry overwrites another one at its place, and the other end
//! puts its own there again at its next attempt.
//!
//! An entry stands while the acceptor looks for an offer. An offer costs the connector much, and is in vain at other
//! times. An entry is a hint, which any process of that user can write. The kernel says which process it leads to
//! ([`offer_socket`](super::offer_socket)). Processes read and write the file by system calls, so that nothing that
//! happens to the file can hurt them.

use crate::switch::socket::tuple::Tuple;
use crate::sys::user_folder::UserFolder;
use crate::sys::{file, folder, process, Errno, Fd, Result};
use std::ffi::{CStr, CString};
use std::time::Duration;

const ENTRY_SIZE: usize = 64;
const ENTRIES: u64 = 4096;
const MAGIC: [u8; 8] = *b"sanshim\x03";

/// Which process has the acceptor's end, and where it is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerEntry {
    /// Names its [`OfferSocket`](super::offer_socket::OfferSocket).
    pub socket: [u64; 2],
}

fn encode(tuple: &Tuple, entry: PeerEntry) -> [u8; ENTRY_SIZE] {
    let mut bytes = [0; ENTRY_SIZE];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..44].copy_from_slice(&tuple.encode());
    bytes[48..56].copy_from_slice(&entry.socket[0].to_ne_bytes());
    bytes[56..].copy_from_slice(&entry.socket[1].to_ne_bytes());
    bytes
}

fn decode(bytes: &[u8; ENTRY_SIZE], tuple: &Tuple) -> Option<PeerEntry> {
    let is_its = bytes[..8] == MAGIC && bytes[8..44] == tuple.encode();
    let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_ne_bytes).ok();
    is_its.then_some(PeerEntry { socket: [word(48)?, word(56)?] })
}

fn place(tuple: &Tuple) -> i64 {
    // FNV-1a.
    let hash = tuple.encode().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    ((hash ^ hash >> 32) % ENTRIES) as i64 * ENTRY_SIZE as i64
}

/// Which connections a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerTable {
    /// Connections of a network namespace, by its number.
    Namespace(u64),
    /// Connections whose ends are in different ones.
    Host,
}

/// Tables of network namespaces have this in front of the namespace's number as their name.
const PREFIX: &str = "peers-";
/// A process removes a table to which nothing was written for so long: its network namespace may be gone. A process
/// that still has it open finds that out and makes another one.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// The name of the table's file in a user's folder.
fn name(table: PeerTable) -> CString {
    let name = match table {
        PeerTable::Namespace(number) => format!("{PREFIX}{number:x}"),
        PeerTable::Host => format!("{PREFIX}host"),
    };
    CString::new(name).unwrap_or_default()
}

/// Opens this user's own, to put entries in.
pub(super) fn open_own(folder: &UserFolder, table: PeerTable) -> Result<Fd> {
    const FLAGS: i32 = libc::O_RDWR | libc::O_NONBLOCK;
    let open = |flags| folder.open_name(&name(table), flags);
    let fd = match open(FLAGS) {
        // A process that adds a table takes away those that are forgotten. So they do not grow in number, and others
        // need not look.
        Err(Errno(libc::ENOENT)) => {
            sweep(folder);
            open(FLAGS | libc::O_CREAT)?
        }
        opened => opened?,
    };
    let made = check(fd, process::euid()).and_then(|()| {
        // The umask may have taken bits away.
        file::set_mode(fd, 0o644)
    });
    made.map(|()| fd).inspect_err(|_| file::close(fd))
}

/// Removes the tables of namespaces in which no process is any more.
fn sweep(folder: &UserFolder) {
    let Ok(opened) = folder::open(folder.as_c_str()) else { return };
    let _ = folder::each_name(opened, |name| {
        if name.to_bytes().starts_with(PREFIX.as_bytes())
            && folder::is_older(opened, name, FORGOTTEN)
        {
            let _ = folder::remove_from(opened, name);
        }
    });
    file::close(opened);
}

fn check(fd: Fd, uid: u32) -> Result<()> {
    let status = file::stat(fd)?;
    let is_right = status.st_uid == uid
        && status.st_nlink == 1
        && status.st_mode & libc::S_IFMT == libc::S_IFREG;
    if is_right {
        Ok(())
    } else {
        Err(Errno(libc::EPERM))
    }
}

/// False once somebody removed the file: nobody finds what is put in. systemd-logind does so when its user logs out
/// (RemoveIPC).
pub(super) fn is_there(table: Fd) -> bool {
    file::stat(table).is_ok_and(|status| status.st_nlink > 0)
}

/// Puts an entry in.
pub(super) fn advertise(table: Fd, tuple: &Tuple, entry: PeerEntry) -> Result<()> {
    write(table, tuple, &encode(tuple, entry))
}

/// Takes an entry out, unless another connection's is there; one that is put there just now is lost until the next attempt.
pub(super) fn withdraw(table: Fd, tuple: &Tuple, entry: PeerEntry) {
    if read(table, tuple) == Some(entry) {
        // If that fails, the connector offers a session that nobody takes.
        let _ = write(table, tuple, &[0; ENTRY_SIZE]);
    }
}

fn write(table: Fd, tuple: &Tuple, bytes: &[u8; ENTRY_SIZE]) -> Result<()> {
    if !file::may_grow_to(ENTRIES as usize * ENTRY_SIZE) {
        // The kernel would end the process, also where the file does not grow.
        return Err(Errno(libc::EFBIG));
    }
    file::pwrite(table, bytes, place(tuple)).map(drop)
}

/// The entry under the first of these names that has one in that user's table. `base` is where the users have their folders.
pub(super) fn find(
    base: &CStr,
    uid: u32,
    table: PeerTable,
    names: &[Tuple],
) -> Option<(Tuple, PeerEntry)> {
    let folder = UserFolder::find_in(base, uid)?;
    let table = folder.open_name(&name(table), libc::O_RDONLY | libc::O_NONBLOCK).ok()?;
    let entry_of = |name: &Tuple| Some((*name, read(table, name)?));
    let found = check(table, uid).ok().and_then(|()| names.iter().find_map(entry_of));
    file::close(table);
    found
}

fn read(table: Fd, tuple: &Tuple) -> Option<PeerEntry> {
    let mut bytes = [0; ENTRY_SIZE];
    let read = file::pread(table, bytes.as_mut_ptr(), ENTRY_SIZE, place(tuple));
    decode(&bytes, tuple).filter(|_| read == Ok(ENTRY_SIZE))
}

/// Feeds an entry of arbitrary bytes: it is that connection's, or nothing.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    let Some(bytes) = data.first_chunk() else { return };
    let Some(tuple) = Tuple::decode(&bytes[8..44]) else { return };
    if let Some(entry) = decode(bytes, &tuple) {
        let again = decode(&encode(&tuple, entry), &tuple);
        assert_eq!(again, Some(entry));
    }
    assert!((0..ENTRIES as i64 * ENTRY_SIZE as i64).contains(&place(&tuple)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::user_folder::SHARED_MEMORY;
    use std::time::SystemTime;

    fn path(folder: &UserFolder, table: PeerTable) -> CString {
        let path = format!("{}/{}", folder.as_str(), name(table).to_string_lossy());
        CString::new(path).unwrap()
    }

    fn found(uid: u32, table: PeerTable, name: &Tuple) -> Option<PeerEntry> {
        find(SHARED_MEMORY, uid, table, &[*name]).map(|(_, entry)| entry)
    }

    #[test]
    fn an_entry_is_found_by_its_connection_alone() {
        let (uid, namespace) = (process::euid(), u64::from(process::pid()) | 1 << 63);
        let tuple = |port| {
            let [connector, acceptor] = [port, 1].map(|port| ([127, 0, 0, 1], port).into());
            Tuple { connector, acceptor }
        };
        assert_eq!(found(uid, PeerTable::Namespace(namespace), &tuple(2)), None);
        let folder = UserFolder::make().unwrap();
        let table = open_own(&folder, PeerTable::Namespace(namespace)).unwrap();
        assert!(is_there(table));
        let entry = PeerEntry { socket: [7, u64::MAX] };
        advertise(table, &tuple(2), entry).unwrap();
        assert_eq!(found(uid, PeerTable::Namespace(namespace), &tuple(2)), Some(entry));
        assert_eq!(found(uid, PeerTable::Namespace(namespace), &tuple(3)), None);
        // Another connection's entry in the same place.
        let other = (3..).map(tuple).find(|other| place(other) == place(&tuple(2))).unwrap();
        advertise(table, &other, PeerEntry { socket: [8, 8] }).unwrap();
        assert_eq!(found(uid, PeerTable::Namespace(namespace), &tuple(2)), None);
        assert_eq!(found(uid + 1, PeerTable::Namespace(namespace), &other), None);
        withdraw(table, &tuple(2), entry);
        assert!(found(uid, PeerTable::Namespace(namespace), &other).is_some(), "another's stays");
        withdraw(table, &other, PeerEntry { socket: [8, 8] });
        assert_eq!(found(uid, PeerTable::Namespace(namespace), &other), None);
        std::fs::remove_file(path(&folder, PeerTable::Namespace(namespace)).to_str().unwrap())
            .unwrap();
        assert!(!is_there(table));
        file::close(table);
    }

    #[test]
    fn what_is_no_table_of_that_user_is_not_believed() {
        let (uid, namespace) = (process::euid(), u64::from(process::pid()) | 1 << 62);
        let folder = UserFolder::make().unwrap();
        let name = path(&folder, PeerTable::Namespace(namespace));
        let path = name.to_str().unwrap();
        std::os::unix::fs::symlink("/dev/zero", path).unwrap();
        assert!(open_own(&folder, PeerTable::Namespace(namespace)).is_err());
        let [connector, acceptor] = [1, 2].map(|port| ([127, 0, 0, 1], port).into());
        assert_eq!(
            found(uid, PeerTable::Namespace(namespace), &Tuple { connector, acceptor }),
            None
        );
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_link_in_a_folders_place_leads_no_table_elsewhere() {
        let base = format!("/dev/shm/sanshim-table-test-{}", process::pid());
        let elsewhere = format!("{base}/elsewhere");
        std::fs::create_dir_all(&elsewhere).unwrap();
        let at = CString::new(base.as_str()).unwrap();
        let folder = UserFolder::make_in(&at).unwrap();
        std::fs::remove_dir(folder.as_str()).unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.as_str()).unwrap();
        assert_eq!(open_own(&folder, PeerTable::Host), Err(Errno(libc::ELOOP)));
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_table_that_nobody_writes_to_is_removed() {
        let namespace = u64::from(process::pid()) | 3 << 60;
        let folder = UserFolder::make().unwrap();
        let [old, new] = [namespace, namespace + 1].map(|namespace| {
            file::close(open_own(&folder, PeerTable::Namespace(namespace)).unwrap());
            path(&folder, PeerTable::Namespace(namespace)).into_string().unwrap()
        });
        let before = SystemTime::now() - 2 * FORGOTTEN;
        std::fs::File::options().write(true).open(&old).unwrap().set_modified(before).unwrap();
        sweep(&folder);
        assert!(!std::path::Path::new(&old).exists());
        std::fs::remove_file(new).unwrap();
    }
}
