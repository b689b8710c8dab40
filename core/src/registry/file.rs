//! The registry file of a process as readers open it. This module checks that it is one, and of which process, and
//! gives its parts as values.
//!
//! Readers read files, and do not map them. A hostile or broken writer may cut its file off at any time, and SIGBUS
//! would end a reader that has mapped it. Reading also leaves a sparse file sparse.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::events::Record;
use super::layout::{RegistryHeader, CAPACITY, HEADER_SIZE, MAGIC, SLOT_SIZE, VERSION};
use super::process::Stat;
use super::publisher::Publisher;
use super::slot::Slot;
use crate::sys::folder::Known;

/// The header of an open file of that process.
///
/// # Errors
/// When it cannot be read, or is not a file of this version.
pub(super) fn header_of(file: &File, publisher: Publisher) -> io::Result<RegistryHeader> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut headers = zeroed::<RegistryHeader>(1);
    if fill(file, &mut headers, 0)? != HEADER_SIZE {
        return Err(invalid("is shorter than its header; remove it".into()));
    }
    validate(&headers[0], publisher).map_err(invalid)?;
    Ok(headers.remove(0))
}

/// # Errors
/// What is wrong with a header, and what to do.
pub(super) fn validate(header: &RegistryHeader, publisher: Publisher) -> Result<(), String> {
    if header.magic.load(Ordering::Relaxed) != MAGIC {
        return Err("is no registry file of sanshim; remove it".into());
    }
    let version = header.version.load(Ordering::Relaxed);
    if version != VERSION {
        return Err(format!(
            "has version {version} of the layout and this sanctl reads version {VERSION}; use the \
             sanctl beside the library that the program runs under"
        ));
    }
    let value = |field: &std::sync::atomic::AtomicU32| field.load(Ordering::Relaxed) as usize;
    let sizes = [&header.header_size, &header.slot_size, &header.capacity].map(value);
    if sizes != [HEADER_SIZE, SLOT_SIZE, CAPACITY] {
        return Err(format!("is corrupt: sizes {sizes:?}; remove it"));
    }
    if value(&header.high_water) > CAPACITY {
        return Err(format!("is corrupt: {} slots in use; remove it", value(&header.high_water)));
    }
    if value(&header.pid) != publisher.pid as usize {
        return Err(format!("is corrupt: says process {}; remove it", value(&header.pid)));
    }
    match header.pid_namespace.load(Ordering::Relaxed) {
        namespace if namespace == publisher.namespace => Ok(()),
        other => Err(format!("is corrupt: says PID namespace {other}; remove it")),
    }
}

/// True when the process has ended, when another one has its id, or when it has executed another program. Where /proc
/// does not tell, the process counts as alive.
pub(super) fn has_ended(header: &RegistryHeader, pid: u32) -> bool {
    let Some(stat) = (match fs::read(format!("/proc/{pid}/stat")) {
        Ok(line) => Stat::parse(&line),
        Err(error) => return error.kind() == io::ErrorKind::NotFound,
    }) else {
        return false;
    };
    let start_time = header.start_time.load(Ordering::Relaxed);
    if stat.ended || (start_time != 0 && start_time != stat.start_time) {
        return true;
    }
    let recorded = header.executable.each_ref().map(|word| word.load(Ordering::Relaxed));
    recorded != [0; 2] && executable_of(pid).is_some_and(|now| recorded != now)
}

/// Device and inode of a process's executable, as far as the kernel knows them by itself: a program may serve the file system, or
/// a host that does not answer.
fn executable_of(pid: u32) -> Option<[u64; 2]> {
    let known = Known::of_named(&CString::new(format!("/proc/{pid}/exe")).ok()?).ok()?;
    let (major, minor) = known.device;
    Some([libc::makedev(major, minor), known.inode])
}

/// Marks types made of nothing but atomics, so that any bytes are a valid value.
///
/// # Safety
/// Every bit pattern is a valid value, and there is no padding.
pub(super) unsafe trait Plain {}
// SAFETY: integers in atomics, with all padding declared as fields.
unsafe impl Plain for RegistryHeader {}
// SAFETY: as above.
unsafe impl Plain for Slot {}
// SAFETY: as above.
unsafe impl Plain for Record {}

pub(super) fn zeroed<T: Plain>(count: usize) -> Vec<T> {
    // SAFETY: zero bytes are a valid T.
    std::iter::repeat_with(|| unsafe { std::mem::zeroed() }).take(count).collect()
}

/// Fills `values` from the file at `offset`. Gives the bytes read, which are fewer at the end of the file.
pub(super) fn fill<T: Plain>(file: &File, values: &mut [T], offset: u64) -> io::Result<usize> {
    let length = size_of_val(values);
    // SAFETY: the same memory as bytes, of which any value is valid.
    let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), length) };
    let mut done = 0;
    while done < length {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
