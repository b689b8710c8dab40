//! Hosts that did not answer over RDMA. All processes of the user share them, so that the next one that starts need not
//! wait for these hosts.
//!
//! They are in a file beside those of the processes, which is read and written in place. It is a table by address, in
//! which a newer entry may take the place of another. An entry is only a hint. Where one is torn or wrong, connections
//! to that host go over TCP for a while.

use super::folder::FolderPath;
use super::kernel::{self, Fd};
use crate::sys::time;
use std::ffi::CStr;
use std::net::IpAddr;

const NAME: &CStr = c"silent-hosts";
/// Entries of the table. Each is an address (16 bytes) and the time (clock in ns) until which it counts.
const ENTRIES: usize = 256;
const ENTRY: usize = 24;

/// The table of one folder.
pub(crate) struct SilentHosts {
    folder: FolderPath,
    owner: u32,
}

/// An entry's address, and where it is in the file.
fn place(host: IpAddr) -> ([u8; 16], usize) {
    let address = match host.to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let bits = address.to_bits();
    let mixed = ((bits ^ bits >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (address.octets(), (mixed >> 56) as usize % ENTRIES * ENTRY)
}

impl SilentHosts {
    /// The table that this user's processes share.
    pub(crate) fn of_this_user() -> Option<Self> {
        let owner = kernel::effective_user();
        FolderPath::of_user(owner).ok().map(|folder| SilentHosts { folder, owner })
    }

    #[cfg(test)]
    pub(super) fn in_folder(folder: FolderPath) -> Self {
        SilentHosts { folder, owner: kernel::effective_user() }
    }

    fn file(&self, folder: &Fd, flags: i32) -> Option<Fd> {
        let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = kernel::open(folder.raw(), NAME, flags, 0o600).ok()?;
        let is_file =
            kernel::status(&file).is_ok_and(|s| s.st_mode & libc::S_IFMT == libc::S_IFREG);
        is_file.then_some(file)
    }

    /// True if the host did not answer within the last `for_how_long` ns.
    pub(crate) fn contains(&self, host: IpAddr, for_how_long: u64) -> bool {
        let (address, offset) = place(host);
        let mut entry = [0; ENTRY];
        let read = self.folder.open_existing().ok().and_then(|folder| {
            let file = self.file(&folder, libc::O_RDONLY)?;
            kernel::read_at(&file, &mut entry, offset).ok()
        });
        let (known, until) = entry.split_at(16);
        let left = until.try_into().map_or(0, u64::from_le_bytes).saturating_sub(time::now());
        read == Some(ENTRY) && known == address && (1..=for_how_long).contains(&left)
    }

    /// The host did not answer. That counts for so long (ns).
    pub(crate) fn note(&self, host: IpAddr, for_how_long: u64) {
        if kernel::file_size_limit() < (ENTRIES * ENTRY) as u64 {
            // To write beyond the limit would raise SIGXFSZ in the program.
            return;
        }
        let (address, offset) = place(host);
        let mut entry = [0; ENTRY];
        entry[..16].copy_from_slice(&address);
        entry[16..].copy_from_slice(&(time::now() + for_how_long).to_le_bytes());
        let Ok(folder) = self.folder.open(self.owner) else { return };
        if let Some(file) = self.file(&folder, libc::O_WRONLY | libc::O_CREAT) {
            let _ = kernel::write_at(&file, &entry, offset);
        }
    }
}
