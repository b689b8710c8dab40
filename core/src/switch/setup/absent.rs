//! Why no process says that it has the other end of a connection, as far as this process can tell.

use super::{identity, offer_name};
use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::switch::policy;
use crate::switch::socket::structure::{Guarded, Structure};
use crate::switch::socket::tuple::Tuple;
use crate::switch::socket::Socket;
use crate::sys::{bound_names, file, folder, net, time, Errno};
use std::ffi::{CStr, CString};

/// Why no process says that it has the other end.
pub(super) fn why_nobody_is_there(
    socket: &Socket,
    structure: &mut Structure,
    tuple: &Tuple,
    role: Role,
) -> Reason {
    let (ours, theirs) = match role {
        Role::Connector => (tuple.connector, tuple.acceptor),
        Role::Acceptor => (tuple.acceptor, tuple.connector),
    };
    // One of a link alone is not found without its interface.
    if theirs.ip() != ours.ip() && !net::is_local(theirs.ip()) {
        return Reason::NotLocal;
    }
    if !socket.traffic.fails_always() {
        // A process that changed its user would have said which user it was.
        return Reason::PeerNative;
    }
    match identity::look(socket.anchor(), theirs, ours) {
        Ok(Some(owner)) if owner.inode != 0 && !policy::may_share_with(owner.uid) => {
            Reason::OtherUser
        }
        Ok(Some(owner)) if owner.inode != 0 && is_somebody_elsewhere(structure) => {
            Reason::OtherNamespace
        }
        Ok(Some(_)) | Err(Reason::OutOfMemory) => Reason::PeerNative,
        // Addresses are translated, or the kernel does not tell.
        Ok(None) | Err(_) => Reason::Unproven,
    }
}

/// How long (ns) a look holds: it reads the kernel's list of all Unix sockets.
const HOLDS: u64 = 1_000_000_000;
/// So many names are remembered from one look to the next.
const MOST_NAMES: usize = 64;

/// The names of offer sockets that this process did not see, when it looked last.
struct OutOfSight {
    names: Vec<String>,
    look_again: u64,
    /// One of them was out of sight in the look before, too.
    stays: bool,
}

static OUT_OF_SIGHT: Guarded<OutOfSight> = Guarded::new(OutOfSight::new());

impl OutOfSight {
    const fn new() -> Self {
        OutOfSight { names: Vec::new(), look_again: 0, stays: false }
    }

    /// True if one stays out of sight, as two looks say that are a second apart at least. A process that exits removes its
    /// name before the kernel closes the socket, and so has one that is out of sight for a moment.
    fn look(&mut self, now: u64, names: impl FnOnce() -> Vec<String>) -> bool {
        if now >= self.look_again {
            let names = names();
            self.stays = names.iter().any(|name| self.names.contains(name));
            (self.names, self.look_again) = (names, now + HOLDS);
        }
        self.stays
    }
}

/// True if a process of this network namespace has an offer socket where this one sees no files of that name: its folder is
/// another one, as a container's /dev/shm is.
fn is_somebody_elsewhere(structure: &mut Structure) -> bool {
    OUT_OF_SIGHT.get(structure).look(time::now(), || {
        let is_such =
            |name: &str| offer_name::is_one(name) && is_out_of_sight(policy::folder(), name);
        bound_names::such(is_such, MOST_NAMES)
    })
}

/// Any process binds sockets of any path, such as one of a file system that never answers. So this leaves out what is
/// not in the folder where this process meets others.
fn is_out_of_sight(base: &CStr, name: &str) -> bool {
    let below = base.to_str().ok().and_then(|base| name.strip_prefix(base)?.strip_prefix('/'));
    let below = below.filter(|below| below.split('/').count() == 2);
    let Some(below) = below.and_then(|below| CString::new(below).ok()) else { return true };
    let Ok(above) = folder::open_above(base) else { return false };
    let opened = folder::open_within(above, &below, libc::O_PATH);
    file::close(above);
    opened.map(file::close) == Err(Errno(libc::ENOENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_others_bind_is_looked_for_in_the_folder_alone() {
        let path = format!("/dev/shm/sanshim-absent-test-{}", std::process::id());
        let base = CString::new(path.as_str()).unwrap();
        let own = format!("{path}/sanshim-user-7");
        fs::create_dir_all(&own).unwrap();
        fs::write(format!("{own}/there"), "").unwrap();
        // A link that leads to where nobody answers.
        std::os::unix::fs::symlink(&own, format!("{path}/sanshim-user-8")).unwrap();
        let is_out = |name: &str| is_out_of_sight(&base, name);
        assert!(!is_out(&format!("{own}/there")));
        assert!(is_out(&format!("{own}/gone")));
        assert!(!is_out(&format!("{path}/sanshim-user-8/gone")));
        assert!(is_out(&format!("{path}/sanshim-user-9/there")));
        // It is there, and was not asked for.
        assert!(is_out(&format!("{own}/../sanshim-user-7/there")));
        assert!(is_out("/dev/shm/sanshim-user-0/there") && is_out("there"));
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_name_is_elsewhere_once_two_looks_a_second_apart_agree() {
        let mut out = OutOfSight::new();
        let these = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let unasked = || panic!("the last look holds");
        assert!(!out.look(1, || these(&["exits"])));
        assert!(!out.look(HOLDS, unasked));
        // The next one that exits has another name.
        assert!(!out.look(1 + HOLDS, || these(&["exits, too", "stays"])));
        assert!(!out.look(2 * HOLDS, unasked));
        assert!(out.look(3 * HOLDS, || these(&["stays"])));
        assert!(out.look(4 * HOLDS - 1, unasked));
        assert!(!out.look(4 * HOLDS, || these(&[])));
        assert!(!out.look(5 * HOLDS, || these(&["stays"])), "it was away");
    }
}
