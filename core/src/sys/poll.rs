//! Waiting for readiness in the kernel.

use super::no_limit::{or_select, Sets};
use super::{call, file, time, Fd, Result};

/// ppoll, also of more descriptors than RLIMIT_NOFILE allows. `timeout` is in nanoseconds, and `None` waits for ever. `mask` is
/// the kernel's 64-bit set.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<u64>, mask: Option<u64>) -> Result<usize> {
    let polled = poll_within_limit(fds, timeout, mask);
    or_select(polled, fds, timeout, |sets, timeout| select(sets, timeout, mask))
}

/// ppoll as the kernel has it.
pub(crate) fn poll_within_limit(
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    mask: Option<u64>,
) -> Result<usize> {
    let t = timeout.map(time::timespec);
    let t = t.as_ref().map_or(0, |t| t as *const _ as usize);
    let m = mask.as_ref().map_or(0, |m| m as *const _ as usize);
    call!(ppoll, fds.as_mut_ptr() as usize, fds.len(), t, m, 8)
}

/// pselect6. The rest is as in [`poll`].
pub(super) fn select(sets: &mut Sets, timeout: Option<u64>, mask: Option<u64>) -> Result<usize> {
    let t = timeout.map(time::timespec);
    let t = t.as_ref().map_or(0, |t| t as *const _ as usize);
    let m = mask.as_ref().map_or(0, |m| m as *const _ as usize);
    let sized_mask = [m, size_of::<u64>()];
    let (n, [read, write, except]) = sets.for_kernel();
    let [read, write, except] = [read as usize, write as usize, except as usize];
    call!(pselect6, n, read, write, except, t, &sized_mask as *const _ as usize)
}

/// Readiness of one descriptor at this moment.
pub(crate) fn poll_one(fd: Fd, events: i16) -> Result<i16> {
    let mut one = [libc::pollfd { fd, events, revents: 0 }];
    poll(&mut one, Some(0), None)?;
    Ok(one[0].revents)
}

/// epoll_create1, close-on-exec.
pub fn epoll_create() -> Result<Fd> {
    call!(epoll_create1, libc::EPOLL_CLOEXEC).map(|fd| fd as Fd)
}

/// epoll_ctl.
pub fn epoll_ctl(set: Fd, operation: i32, fd: Fd, events: u32, data: u64) -> Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    call!(epoll_ctl, set, operation, fd, &mut event as *mut _ as usize).map(drop)
}

/// The events that an epoll set waits for on a descriptor, as the kernel has them. `None` if it does not say.
pub(crate) fn epoll_events(set: Fd, fd: Fd) -> Option<u32> {
    let path = std::ffi::CString::new(format!("/proc/self/fdinfo/{set}")).ok()?;
    let file = file::open_to_read(&path).ok()?;
    let (mut text, mut piece) = (Vec::new(), [0u8; 512]);
    while let Ok(n @ 1..) = file::read(file, piece.as_mut_ptr(), piece.len()) {
        text.extend_from_slice(&piece[..n]);
    }
    file::close(file);
    // A line is as: tfd:        5 events:       19 data: ...
    String::from_utf8_lossy(&text).lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let is_its = words.next() == Some("tfd:") && words.next()?.parse() == Ok(fd);
        let events = words.nth(1).filter(|_| is_its)?;
        u32::from_str_radix(events, 16).ok()
    })
}

/// Waits on an epoll set as epoll_pwait2 does. `timeout` and `mask` are as in [`poll`].
pub fn epoll_wait(
    set: Fd,
    events: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: Option<u64>,
) -> Result<usize> {
    let m = mask.as_ref().map_or(0, |m| m as *const _ as usize);
    let (at, length) = (events.as_mut_ptr() as usize, events.len());
    let whole_milliseconds = match timeout {
        None => Some(-1),
        Some(t) if t % 1_000_000 == 0 => Some((t / 1_000_000).min(i32::MAX as u64) as i32),
        Some(_) => None,
    };
    match whole_milliseconds {
        Some(ms) => call!(epoll_pwait, set, at, length, ms, m, 8),
        None => {
            let t = time::timespec(timeout.unwrap_or(0));
            match call!(epoll_pwait2, set, at, length, &t as *const _ as usize, m, 8) {
                // A kernel before 5.11 only takes milliseconds. Rounded up, a wait is never too short.
                Err(super::Errno(libc::ENOSYS)) => {
                    let ms = timeout.unwrap_or(0).div_ceil(1_000_000).min(i32::MAX as u64);
                    call!(epoll_pwait, set, at, length, ms as i32, m, 8)
                }
                other => other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_was_reported_once_is_waited_for_no_more() {
        let (set, fd) = (epoll_create().unwrap(), file::eventfd(1).unwrap());
        const WANTED: u32 = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
        assert_eq!(epoll_events(set, fd), None);
        epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, WANTED, 7).unwrap();
        let asked = libc::EPOLLIN as u32;
        assert_eq!(epoll_events(set, fd).unwrap() & asked, asked);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }];
        assert_eq!(epoll_wait(set, &mut events, Some(0), None), Ok(1));
        assert_eq!(epoll_events(set, fd).unwrap() & asked, 0);
        [set, fd].into_iter().for_each(file::close);
    }
}
