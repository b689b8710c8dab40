//! What `sanctl` asks of a process: a word in the connection's slot, then the count in the header.
//!
//! The process looks at the count now and then, by the clock; so nothing here waits for it.

use std::fs::OpenOptions;
use std::io;
use std::mem::offset_of;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::layout::{Header, CAPACITY, HEADER_SIZE, SLOT_SIZE};
use super::reader::{fill, validate, zeroed};
use super::slot::{Provider, Slot};

/// Asks a process to move a connection back to TCP, or all of its connections; how many were asked.
/// `file` is the process's registry file.
///
/// # Errors
/// When the file cannot be read and written, or is none of this version.
pub fn request_detach(file: &Path, pid: u32, fd: Option<RawFd>) -> io::Result<usize> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(file)?;
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut headers = zeroed::<Header>(1);
    if fill(&file, &mut headers, 0)? != HEADER_SIZE {
        return Err(invalid("is shorter than its header; remove it".into()));
    }
    validate(&headers[0], pid).map_err(invalid)?;
    let count = (headers[0].high_water.load(Ordering::Relaxed) as usize).min(CAPACITY);
    let mut slots = zeroed::<Slot>(count);
    fill(&file, &mut slots, HEADER_SIZE as u64)?;
    let mut asked = 0;
    for (index, slot) in slots.iter().enumerate() {
        let (false, Some(sequence)) = (slot.is_hidden(), slot.stable_sequence()) else { continue };
        let Ok(identity) = slot.identity() else { continue };
        if identity.provider == Provider::Tcp
            || identity.peer.port() == 0
            || fd.is_some_and(|fd| fd != identity.fd)
        {
            continue;
        }
        let at = HEADER_SIZE + index * SLOT_SIZE + offset_of!(Slot, detach);
        file.write_all_at(&(sequence + 1).to_ne_bytes(), at as u64)?;
        asked += 1;
    }
    if asked > 0 {
        let next = headers[0].requests.load(Ordering::Relaxed).wrapping_add(1);
        let at = offset_of!(Header, requests);
        file.write_all_at(&next.to_ne_bytes(), at as u64)?;
    }
    Ok(asked)
}

const _: () = assert!(size_of::<AtomicU32>() == size_of::<u32>());
