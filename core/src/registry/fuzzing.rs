//! A registry file of any content: `sanctl` reads values from it, or reports a problem.

use super::file::{fill, zeroed};
use super::follow::Follower;
use super::layout::{RegistryHeader, CAPACITY, EVENTS_AT, HEADER_SIZE, MAGIC, SLOT_SIZE, VERSION};
use super::place::RegistryPlace;
use super::process::Stat;
use super::publisher::Publisher;
use super::reader::fuzz_file;
use super::request::Requests;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the input that are the header's; zeroes follow.
const HEAD: usize = 1024;

/// A file that is removed at the end.
struct Written(PathBuf);

impl Written {
    fn new(header: &[u8], slots: &[u8], events: &[u8]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/dev/shm/sanshim-fuzz-{}-{number}", std::process::id()));
        let file = File::create(&path).unwrap();
        file.write_all_at(header, 0).unwrap();
        file.write_all_at(slots, HEADER_SIZE as u64).unwrap();
        if !events.is_empty() {
            file.write_all_at(events, EVENTS_AT as u64).unwrap();
        }
        Self(path)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The first byte says how much of the header is as it should be, and how many slots there are; then come the header, the slots,
/// and the events.
pub(crate) fn fuzz(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    let (head, rest) = rest.split_at(HEAD.min(rest.len()));
    let mut header = vec![0; HEADER_SIZE];
    header[..head.len()].copy_from_slice(head);
    let count = (usize::from(choice >> 2) % 16).min(rest.len() / SLOT_SIZE);
    let publisher = Publisher::of_this_process().unwrap();
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    if choice & 1 == 0 {
        put(offset_of!(RegistryHeader, magic), &MAGIC.to_ne_bytes());
        put(offset_of!(RegistryHeader, version), &VERSION.to_ne_bytes());
        put(offset_of!(RegistryHeader, header_size), &(HEADER_SIZE as u32).to_ne_bytes());
        put(offset_of!(RegistryHeader, slot_size), &(SLOT_SIZE as u32).to_ne_bytes());
        put(offset_of!(RegistryHeader, capacity), &(CAPACITY as u32).to_ne_bytes());
        put(offset_of!(RegistryHeader, pid), &publisher.pid.to_ne_bytes());
        put(offset_of!(RegistryHeader, pid_namespace), &publisher.namespace.to_ne_bytes());
        // Nobody knows when it began, and what it executes.
        put(offset_of!(RegistryHeader, start_time), &[0; 8]);
        put(offset_of!(RegistryHeader, executable), &[0; 16]);
    }
    if choice & 2 == 0 {
        put(offset_of!(RegistryHeader, high_water), &(count as u32).to_ne_bytes());
    }
    let (slots, events) = rest.split_at(count * SLOT_SIZE);
    let file = Written::new(&header, slots, events);
    let found = std::fs::metadata(&file.0).unwrap();
    let (near, identity) = (Some(publisher.pid), (found.dev(), found.ino()));
    let place =
        RegistryPlace { path: file.0.clone(), root: None, shared: None, publisher, near, identity };
    fuzz_file(&place);
    if let Ok(mut follower) = Follower::of(&place) {
        let _ = (follower.has_ended(), follower.read().map(|read| format!("{read:?}")));
    }
    if let Ok(requests) = Requests::to(&place) {
        let found = requests.on_san().unwrap_or_default();
        let _ = (requests.helper(), requests.detach(&found));
        assert!(found.iter().filter_map(|one| requests.again(one)).count() <= found.len());
    }
    let _ = (Stat::parse(data), Publisher::parse(data));
    let mut header = zeroed::<RegistryHeader>(1);
    let _ = File::open(&file.0).and_then(|file| fill(&file, &mut header, 1));
}
