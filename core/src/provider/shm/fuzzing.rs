//! Memory of any content, offered for a segment.

use super::layout::{MAGIC, VERSION};
use super::{Geometry, Segment};
use crate::sys::{file, sealed, PAGE};

/// Memory that a connector may offer: it is refused, or has the parts that it says, and no more. The first byte says how large it is
/// and whether it begins as it should; the rest is what it begins with.
pub(crate) fn fuzz(data: &[u8]) {
    const SIZES: std::ops::Range<usize> = 12..32;
    let Some((&choice, rest)) = data.split_first() else { return };
    let mut head = [0; PAGE];
    let length = rest.len().min(PAGE);
    head[..length].copy_from_slice(&rest[..length]);
    if choice & 1 == 0 {
        head[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        head[8..SIZES.start].copy_from_slice(&VERSION.to_ne_bytes());
    }
    let mut sizes = head[SIZES].chunks_exact(4).map(|word| {
        let bytes = word.try_into().unwrap_or_default();
        u32::from_ne_bytes(bytes)
    });
    let mut next = || sizes.next().unwrap_or_default();
    let geometry = Geometry {
        buffers: next(),
        message_size: next(),
        send_buffer: next(),
        largest_message: next(),
        largest_send_buffer: next(),
    };
    let size = match geometry.check() {
        Ok(geometry) if choice & 2 == 0 => geometry.total(),
        _ => usize::from(choice >> 2) * PAGE,
    };
    let Ok(fd) = sealed::create(c"fuzz", size) else { return };
    if size >= PAGE {
        let at = file::map_shared(Some(fd), PAGE).unwrap();
        // SAFETY: a page is mapped there, and nobody else's.
        unsafe {
            at.copy_from_nonoverlapping(head.as_ptr(), PAGE);
            file::unmap(at, PAGE);
        }
    }
    if let Ok(segment) = Segment::attach(fd) {
        assert_eq!((segment.geometry(), segment.geometry().total()), (geometry, size));
        // SAFETY: it is not used again.
        unsafe { segment.unmap() };
    }
    file::close(fd);
}
