//! Epoll sets and their descriptors: made, changed, duplicated, closed, and over a fork.

use crate::reason::Reason;
use crate::switch::anchor::watchers;
use crate::switch::back_to_tcp::detach::WaitForRoom;
use crate::switch::handing_on::bring_back;
use crate::switch::outcome::Outcome;
use crate::switch::readiness::epoll;
use crate::switch::socket::set::{Inner, Set, FREE};
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table;
use crate::sys::{hidden, Errno, Fd, Result};
use std::sync::atomic::Ordering;

/// After epoll_create gave the program `fd`.
pub fn created(fd: Fd) {
    let mut structure = Structure::lock();
    let set = match FREE.get(&mut structure).pop() {
        Some(set) => set,
        None => Box::leak(Box::new(Set::blank())),
    };
    set.fd.store(fd, Ordering::Relaxed);
    set.descriptors.store(1, Ordering::Relaxed);
    set.is_watched.store(false, Ordering::Relaxed);
    table::put_set(fd, set);
}

/// epoll_ctl. `event` is null only for EPOLL_CTL_DEL. A set with sockets on the SAN takes a descriptor of the library's own and
/// memory: where there is none the connection goes back to TCP, as which it takes neither.
pub fn control(
    set: Fd,
    operation: i32,
    fd: Fd,
    event: Option<(u32, u64)>,
    real: impl Fn() -> Result<()>,
) -> Outcome {
    let changed = epoll::control(set, operation, fd, event, &real);
    const LACKS: [i32; 4] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOSPC];
    if matches!(changed, Outcome::Done(Err(Errno(e))) if LACKS.contains(&e)) && brought_back(fd) {
        return epoll::control(set, operation, fd, event, &real);
    }
    changed
}

#[cold]
fn brought_back(fd: Fd) -> bool {
    bring_back::bring_back_for(&[fd], Reason::OutOfMemory, WaitForRoom::Second)
}

/// After the program made another descriptor for a set.
pub fn duplicated(set: &'static Set, to: Fd) {
    let _structure = Structure::lock();
    set.descriptors.fetch_add(1, Ordering::Relaxed);
    table::put_set(to, set);
}

/// Before the program closes a descriptor of a set.
pub fn closing(set: &'static Set, fd: Fd) {
    let mut structure = Structure::lock();
    table::clear(fd);
    if set.descriptors.fetch_sub(1, Ordering::Relaxed) > 1 {
        if set.fd.load(Ordering::Relaxed) == fd {
            let mut other = None;
            table::each_known(0, Fd::MAX - 1, |candidate| {
                if table::set(candidate).is_some_and(|s| std::ptr::eq(s, set)) {
                    other = Some(candidate);
                }
            });
            set.fd.store(other.unwrap_or(-1), Ordering::Relaxed);
        }
        return;
    }
    set.generation.fetch_add(1, Ordering::Relaxed);
    watchers::clear(&mut structure, set);
    set.with(|inner| inner.members.clear());
    set.has_members.store(false, Ordering::Relaxed);
    let shadow = set.shadow.swap(-1, Ordering::Relaxed);
    if shadow >= 0 {
        hidden::close(shadow);
    }
    FREE.get(&mut structure).push(set);
}

/// In a fork child: no other thread exists that could hold a set's lock or sleep in it.
pub(crate) fn after_fork_in_child() {
    table::each_known(0, Fd::MAX - 1, |fd| {
        if let Some(set) = table::set(fd) {
            set.lock.reset();
            set.sleepers.store(0, Ordering::Relaxed);
            // The shadow set and the raised counters are the parent's. The child goes on watching through a shadow set
            // of its own.
            let shadow = set.shadow.swap(-1, Ordering::Relaxed);
            if shadow >= 0 {
                hidden::close(shadow);
                set.inherited.store(true, Ordering::Relaxed);
            }
            set.with(Inner::make_all_hot);
        }
    });
}
