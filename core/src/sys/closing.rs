//! Closes what somebody else sent where the program does not wait for it.
//!
//! The last close of a file may take as long as the sender wants: a connection with SO_LINGER waits for its peer, a
//! file of a FUSE file system for the process that serves it. A thread that ends with the last of them closes them.
//! There is no such thread unless a peer that may share memory with this process sends what no library does, or the
//! socket is [`Lent`] and its close may wait.

use super::process::{self, SignalsHeld};
use super::{file, hidden, net, thread, Fd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed};

/// Most threads at a time.
const MOST: usize = 16;

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// True while nothing more that may have to be closed here should be accepted.
pub(crate) fn is_overrun() -> bool {
    UNDER_WAY.load(Relaxed) >= MOST
}

/// Closes them, in this order. They keep their numbers until then: to close one of two would be to wait as well.
pub(crate) fn elsewhere(all: Vec<Fd>) {
    // The program closes none of them, as far as it calls libc.
    all.iter().for_each(|fd| hidden::note(*fd));
    in_a_thread(move || all.into_iter().for_each(hidden::close));
}

fn in_a_thread(close: impl FnOnce() + Send + 'static) {
    UNDER_WAY.fetch_add(1, Relaxed);
    // The thread inherits the mask: no signal of the program is ever delivered to it.
    let held = SignalsHeld::new();
    let started = thread::builder().spawn(move || {
        close();
        UNDER_WAY.fetch_sub(1, Relaxed);
    });
    drop(held);
    static SAID: AtomicBool = AtomicBool::new(false);
    if let Some(why) = started.err().filter(|_| !SAID.swap(true, Relaxed)) {
        log::warn!("what a peer sent stays open, since there is no thread to close it: {why}");
    }
}

/// No descriptor.
const NONE: Fd = -1;

/// Most lent sockets at a time.
const MOST_LENT: usize = 64;
/// The lent sockets of this process.
static LENT: [AtomicI32; MOST_LENT] = [const { AtomicI32::new(NONE) }; MOST_LENT];

/// A socket that another process lends to this one. If the last close of that socket waits (SO_LINGER), the program does
/// not wait for that. A fork child has none of its parent's, if no fork comes while one is made or dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    fd: Fd,
    /// Where it is noted. `None` in a vfork child: that memory is the parent's.
    noted: Option<&'static AtomicI32>,
}

impl Lent {
    /// Takes over `descriptor`. `None` where there are too many of them, or where `descriptor` is not what it `should_be`: then this closes it.
    pub(crate) fn new(descriptor: Fd, should_be: impl FnOnce(Fd) -> bool) -> Option<Self> {
        if !should_be(descriptor) {
            close_unknown(descriptor);
            return None;
        }
        if process::is_borrowed() {
            return Some(Self { fd: descriptor, noted: None });
        }
        let fd = hidden::keep(descriptor);
        let is_free = |one: &&AtomicI32| one.compare_exchange(NONE, fd, Relaxed, Relaxed).is_ok();
        let noted = LENT.iter().find(is_free);
        if noted.is_none() {
            hidden::forget(fd);
            close_unknown(fd);
        }
        noted.map(|noted| Self { fd, noted: Some(noted) })
    }

    /// Its number in this process.
    pub(crate) fn fd(&self) -> Fd {
        self.fd
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (fd, Some(noted)) = (self.fd, self.noted) else { return file::close(self.fd) };
        // A fork child of a signal handler's has closed it.
        let close = move || {
            if noted.load(Relaxed) == fd {
                hidden::close(fd);
                noted.store(NONE, Relaxed);
            }
        };
        if net::lingers(fd) {
            in_a_thread(close);
        } else {
            close();
        }
    }
}

/// Closes what may be any file: the lender's number was another file's by then.
fn close_unknown(fd: Fd) {
    // A thread of a vfork child's would be its parent's.
    if (net::lingers(fd) || !file::is_socket(fd)) && !process::is_borrowed() {
        elsewhere(vec![fd]);
    } else {
        file::close(fd);
    }
}

/// In a fork child, which has no such thread.
pub(crate) fn after_fork_in_child() {
    UNDER_WAY.store(0, Relaxed);
    for noted in &LENT {
        let fd = noted.swap(NONE, Relaxed);
        if fd != NONE {
            hidden::close(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::sync::Mutex;

    /// The tests share the list.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn a_lent_sockets_last_close_is_not_waited_for() {
        let _alone = [ALONE.lock(), crate::sys::apart::ALONE.lock()];
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // It reads nothing.
        let (other, _) = listener.accept().unwrap();
        assert!(!net::lingers(one.as_raw_fd()));
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        let set =
            |linger| net::set_option(one.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, linger);
        set(&at_once).unwrap();
        assert!(!net::lingers(one.as_raw_fd()), "it resets");
        set(&libc::linger { l_onoff: 1, l_linger: 86_400 }).unwrap();
        while net::send(one.as_raw_fd(), &[0; 65536], libc::MSG_DONTWAIT).is_ok() {}
        let take = |socket: std::net::TcpStream| Lent::new(socket.into_raw_fd(), file::is_socket);
        let lent_to_us = take(one.try_clone().unwrap()).unwrap();
        assert!(lent_to_us.fd() >= file::FLOOR && hidden::is_hidden(lent_to_us.fd()));
        drop(lent_to_us);
        // The lender's own is not the last one, or the thread has closed its own.
        drop(take(one));
        // A reset ends the wait of that close. Only then does the next test find the list empty.
        drop(other);
        while LENT.iter().any(|noted| noted.load(Relaxed) != NONE) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn there_is_room_for_some_of_them() {
        let _alone = ALONE.lock();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let take = || Lent::new(listener.try_clone().unwrap().into_raw_fd(), file::is_socket);
        let taken: Vec<Lent> = (0..2 * MOST_LENT).filter_map(|_| take()).collect();
        assert_eq!(taken.len(), MOST_LENT);
        drop(taken);
        assert!(take().is_some());
        assert!(Lent::new(listener.into_raw_fd(), |_| false).is_none());
    }

    #[test]
    fn a_fork_child_has_none() {
        let _alone = ALONE.lock();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let lent = Lent::new(listener.try_clone().unwrap().into_raw_fd(), file::is_socket).unwrap();
        // What the child does, in this process.
        after_fork_in_child();
        let fd = lent.fd();
        assert!(!hidden::is_hidden(fd) && !file::is_socket(fd), "it is closed");
        drop(lent);
        assert!(LENT.iter().all(|noted| noted.load(Relaxed) == NONE));
    }
}
