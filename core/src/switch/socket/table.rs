//! Which descriptor is which: one array look-up, no lock.

use crate::switch::socket::lane::Lane;
use crate::switch::socket::set::Set;
use crate::switch::socket::{phase, Socket};
use crate::sys::{file, Fd, Result};
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Descriptors from here on are left to the kernel.
const LIMIT: usize = 1 << 20;
/// Marks an entry as an epoll set's.
const SET: usize = 1;

#[link_section = "sanshim_words"]
static ENTRIES: AtomicPtr<AtomicUsize> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the table. It is virtual memory only, touched where descriptors are ours.
pub(crate) fn initialize() -> Result<()> {
    let at = file::map_private(LIMIT * std::mem::size_of::<AtomicUsize>())?;
    ENTRIES.store(at.cast(), Ordering::Release);
    Ok(())
}

#[inline]
fn entry(fd: Fd) -> Option<&'static AtomicUsize> {
    let entries = ENTRIES.load(Ordering::Acquire);
    if entries.is_null() || fd as u32 as usize >= LIMIT {
        return None;
    }
    // SAFETY: the table has LIMIT entries and is never unmapped.
    Some(unsafe { &*entries.add(fd as usize) })
}

/// A socket that can not be recycled while this exists.
pub struct Pinned(&'static Socket);

impl Deref for Pinned {
    type Target = Socket;

    #[inline]
    fn deref(&self) -> &Socket {
        self.0
    }
}

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        self.0.unpin();
    }
}

impl Pinned {
    /// Pins a socket known to be alive.
    pub(crate) fn new(socket: &'static Socket) -> Self {
        socket.pin();
        Self(socket)
    }

    /// Pins a socket that may be on its way to be used anew. `None`: it is.
    pub(in crate::switch) fn of_used(socket: &'static Socket) -> Option<Self> {
        if socket.pin_if_used() {
            return Some(Self(socket));
        }
        None
    }

    /// Takes over a pin that exists already.
    pub(crate) fn adopt(socket: &'static Socket) -> Self {
        Self(socket)
    }

    /// The socket itself, with this pin, which the caller gives back.
    pub(in crate::switch) fn keep(self) -> &'static Socket {
        std::mem::ManuallyDrop::new(self).0
    }

    /// The socket itself, to keep beyond this pin under another one.
    pub(crate) fn get(&self) -> &'static Socket {
        self.0
    }

    /// The socket's address, for comparing identities.
    pub(crate) fn address(&self) -> *const Socket {
        self.0
    }

    /// The number by which the kernel goes on with a call on `fd` that the switch began: another thread may have closed it
    /// meanwhile, and have put another file there.
    #[cold]
    pub fn number_now(&self, fd: Fd) -> Fd {
        match connected(fd) {
            Some(now) if std::ptr::eq(now.address(), self.address()) => fd,
            _ => self.anchor(),
        }
    }
}

#[inline]
fn pin_if(fd: Fd, wanted: impl Fn(u32) -> bool) -> Option<Pinned> {
    let entry = entry(fd)?;
    loop {
        let value = entry.load(Ordering::Acquire);
        if value == 0 || value & SET != 0 {
            return None;
        }
        // SAFETY: sockets live in memory that is never freed or used for anything else.
        let socket = unsafe { &*(value as *const Socket) };
        if !wanted(socket.phase()) {
            return None;
        }
        socket.pin();
        if entry.load(Ordering::SeqCst) == value {
            return Some(Pinned(socket));
        }
        socket.unpin();
    }
}

/// The socket behind `fd`, if the switch knows it. As long as the result is kept it does not enter the SAN.
#[inline]
pub(crate) fn socket(fd: Fd) -> Option<Pinned> {
    let pinned = pin_if(fd, |_| true)?;
    pinned.await_lane();
    Some(pinned)
}

/// The socket behind `fd`, if its bytes go over the SAN.
#[inline]
pub fn san(fd: Fd) -> Option<Pinned> {
    let pinned = pin_if(fd, |p| matches!(p, phase::SAN | phase::ENTERING))?;
    (pinned.await_lane() == Lane::San).then_some(pinned)
}

/// The socket behind `fd`, if its bytes go over the SAN, or may do so later. While the caller keeps the result, the
/// latter does not change.
#[inline]
pub fn connected(fd: Fd) -> Option<Pinned> {
    pin_if(fd, |p| matches!(p, phase::SAN | phase::TCP | phase::ENTERING))
}

/// True if `fd` is a descriptor of the socket. Pins nothing and waits for nothing.
pub(in crate::switch) fn is_of(fd: Fd, socket: &Socket) -> bool {
    let address = std::ptr::from_ref(socket) as usize as u64;
    entry(fd).is_some_and(|entry| entry.load(Ordering::Acquire) as u64 == address)
}

/// The epoll set behind `fd`.
#[inline]
pub fn set(fd: Fd) -> Option<&'static Set> {
    let value = entry(fd)?.load(Ordering::Acquire);
    if value & SET == 0 {
        return None;
    }
    // SAFETY: sets are never freed, only recycled.
    Some(unsafe { &*((value & !SET) as *const Set) })
}

/// True if `fd` is anything of ours.
#[inline]
pub fn is_known(fd: Fd) -> bool {
    entry(fd).is_some_and(|e| e.load(Ordering::Relaxed) != 0)
}

/// Enters a socket. False if the descriptor is beyond the table.
pub(crate) fn put_socket(fd: Fd, socket: &'static Socket) -> bool {
    put(fd, socket as *const Socket as usize)
}

/// Enters an epoll set. False if the descriptor is beyond the table.
pub(crate) fn put_set(fd: Fd, set: &'static Set) -> bool {
    put(fd, set as *const Set as usize | SET)
}

fn put(fd: Fd, value: usize) -> bool {
    let Some(entry) = entry(fd) else { return false };
    entry.store(value, Ordering::SeqCst);
    if HIGHEST.load(Ordering::Relaxed) <= fd as usize {
        HIGHEST.fetch_max(fd as usize + 1, Ordering::Relaxed);
    }
    true
}

static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Removes the entry of `fd` if it is this socket's: of several callers one does.
pub(in crate::switch) fn take(fd: Fd, socket: &'static Socket) -> bool {
    let socket = socket as *const Socket as usize;
    entry(fd).is_some_and(|entry| {
        entry.compare_exchange(socket, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    })
}

/// Removes the entry of `fd`.
pub(crate) fn clear(fd: Fd) {
    if let Some(entry) = entry(fd) {
        entry.store(0, Ordering::SeqCst);
    }
}

/// Calls `each` with every known socket descriptor. The code of `each` is no copy of this function's own, and so does not
/// lie among the code that a fork child touches.
pub(crate) fn each_socket(each: &mut dyn FnMut(Fd, Pinned)) {
    for fd in 0..HIGHEST.load(Ordering::Relaxed) as Fd {
        if let Some(socket) = pin_if(fd, |_| true) {
            each(fd, socket);
        }
    }
}

/// Calls `each` with every known socket of this process, whose only thread is the caller. It pins none for that, so
/// that a fork child's pages stay its parent's.
pub(in crate::switch) fn each_socket_alone(mut each: impl FnMut(&'static Socket)) {
    for fd in 0..HIGHEST.load(Ordering::Relaxed) {
        let value = entry(fd as Fd).map_or(0, |entry| entry.load(Ordering::Relaxed));
        if value != 0 && value & SET == 0 {
            // SAFETY: sockets live in memory that is never freed or used for anything else.
            each(unsafe { &*(value as *const Socket) });
        }
    }
}

/// Calls `each` with every known descriptor from `first` to `last`.
pub fn each_known(first: Fd, last: Fd, mut each: impl FnMut(Fd)) {
    let end = HIGHEST.load(Ordering::Relaxed).min((last.max(0) as usize).saturating_add(1));
    for fd in first.max(0) as usize..end {
        if is_known(fd as Fd) {
            each(fd as Fd);
        }
    }
}
