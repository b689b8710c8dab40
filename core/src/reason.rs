//! Why a connection is, or is not, on the SAN.
//!
//! Owns the list of reasons. Each has a stable code for programs (`sanctl status --json`, the log), and for people a
//! sentence and what to do. Decides nothing, which is up to the switch.

use std::fmt;

/// Declares [`Reason`] with, for each value, its number in the registry, its code, its sentence and the remedy.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $code:literal, $sentence:literal, $remedy:literal;)+) => {
        /// Why a connection is, or is not, on the SAN.
        ///
        /// Numbers and codes are stable: the registry and `sanctl status --json` carry them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $name = $number,)+
        }

        impl Reason {
            /// Every reason, in the order of the numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),+];

            /// The stable code, in kebab case: `no-listener`.
            pub const fn code(self) -> &'static str {
                match self { $(Reason::$name => $code,)+ }
            }

            /// One sentence for people, without a full stop.
            pub const fn sentence(self) -> &'static str {
                match self { $(Reason::$name => $sentence,)+ }
            }

            /// What would have to change for the connection to be on the SAN, without a full stop. Empty where there is
            /// nothing to say.
            pub const fn remedy(self) -> &'static str {
                match self { $(Reason::$name => $remedy,)+ }
            }

            /// The reason with this number. `None` for a number that this version does not know.
            pub(crate) const fn from_u32(number: u32) -> Option<Reason> {
                match number { $($number => Some(Reason::$name),)+ _ => None }
            }
        }
    };
}

reasons! {
    /// Set-up has not finished: the other end was not found ready, or has not been looked for again yet.
    Pending = 0, "pending", "waits until its other end is ready to move, too",
        "wait: it moves once both ends have made enough transfers; the program at the other end must run under the shim";
    /// On the SAN.
    OnSan = 1, "on-san", "is on the SAN",
        "";
    /// No process with the library says that it has the other end.
    PeerNative = 3, "peer-native", "found no program under the shim at its other end",
        "start the program at the other end with sanctl run";
    /// The peer's address is not one of this host's.
    NotLocal = 5, "not-local", "the peer's address is not this host's",
        "if it is a container of this host, mount one folder into both, and name it in SANSHIM_FOLDER (docs/containers.md); \
         between hosts both need an RDMA device, sanshim-verbs and sanctl run";
    /// The peer's user is not ours, and no `allow_users` admits it.
    OtherUser = 6, "other-user", "the peer runs as a user that is not allowed to share memory with us",
        "name the peer's user in allow_users, or a group of that user in allow_groups, in the configuration of both: \
         sanctl check --with USER gives the line";
    /// The acceptor answered REFUSED.
    RefusedByPeer = 7, "refused-by-peer", "the peer's shim declined",
        "ask at the other end: its sanctl why says what hinders it there";
    /// A rule says `san = false`.
    Policy = 9, "policy", "a rule in the configuration keeps it on TCP",
        "change the rule in the configuration that says san = false, and restart the program";
    /// Because of SANSHIM=off or `enabled = false`.
    Off = 10, "off", "the shim is switched off",
        "unset SANSHIM, or set enabled = true in the configuration, and restart the program";
    /// A socket option is in force that the SAN cannot honour.
    UnsupportedOption = 11, "unsupported-option", "a socket option needs plain TCP",
        "have the program not set that socket option (docs/reference/calls.md lists them)";
    /// There was no memory, or no descriptor, for a session; or it would take what is the program's share.
    OutOfMemory = 12, "out-of-memory", "no memory or descriptor was left for a session",
        "give it more room: the memory cgroup, /dev/shm, vm.max_map_count, ulimit -v for addresses, -n for descriptors, -f \
         for files, -l for RDMA; \
         sanctl check tells more";
    /// What the peer offered as a segment failed validation.
    SegmentInvalid = 13, "segment-invalid", "the peer's shared memory was not valid",
        "look at the program at the other end: it, or its library, is not what it seems";
    /// The peer speaks another version of the protocol.
    VersionMismatch = 14, "version-mismatch", "the peer runs another version of the shim",
        "restart the program that runs under the older library";
    /// A stream socket that is neither connected nor listening.
    NotConnected = 15, "not-connected", "not connected",
        "";
    /// A listening socket.
    Listener = 16, "listener", "a listening socket",
        "";
    /// `sanctl detach` asked for it.
    Detached = 17, "detached", "went back to TCP because sanctl detach asked for it",
        "nothing brings this connection back; a new one goes to the SAN";
    /// Another program got it, by exec or with a message, or may do so; or a seccomp filter or a namespace confines this one.
    HandedOver = 18, "handed-over", "went back to TCP because another program got it, or its own confined itself",
        "nothing brings it back; set close-on-exec on it, or pass on the listener instead, and a new one moves";
    /// The peer's end went back first.
    PeerReturned = 19, "peer-returned", "went back to TCP because the peer did",
        "ask at the other end: its sanctl why says what hinders it there";
    /// No provider has an adapter from which the peer is reached.
    NoDevice = 20, "no-device", "the peer is on another host, and no RDMA device leads there",
        "see sanctl providers: it lists the RDMA devices and why they cannot be used";
    /// The peer's host did not answer over the fabric, or its number there is another program's.
    Unreachable = 21, "unreachable", "the peer did not answer over RDMA",
        "see that RDMA leads to that host (rping), and start the program there with sanctl run";
    /// It is not busy, or has not been for long enough.
    Quiet = 23, "quiet", "has made few transfers yet, or was idle",
        "nothing is wrong: it moves by itself once both ends have made enough transfers (move_after in the configuration says \
         how many), unless a rule in the configuration keeps it on TCP; one that came with an exec or a message stays";
    /// Another process has it too, or may have it, since before it was on the SAN.
    Shared = 24, "shared", "other processes have it as well, or had it and did not close it",
        "it moves once one process alone has it; one that was killed, or ran another program, counts for ever: set \
         close-on-exec, and a new one moves";
    /// The other end is under the shim, and did not look for this one when this one looked. The process cannot tell that from
    /// [`PeerNative`](Reason::PeerNative); the reader of all processes' files can.
    PeerStays = 25, "peer-stays", "the peer's shim keeps it on TCP",
        "ask at the other end: its sanctl why says what hinders it there";
    /// It sent urgent data, or wants a signal for what comes (O_ASYNC).
    TcpOnly = 26, "tcp-only", "uses what only TCP has: urgent data, or a signal when something comes",
        "have the program send no urgent data (MSG_OOB) and not set O_ASYNC";
    /// Nothing shows that the ends that found each other hold the same connection.
    Unproven = 27, "unproven", "nothing shows which socket is its other end, as where addresses are translated (NAT)",
        "let it exchange small requests and answers, which show it, or connect to the address at which the server listens, \
         past NAT rules; in a container let the program use NETLINK_SOCK_DIAG sockets";
    /// The process's user has no number of its own in its user namespace, so nobody can be told that it is this user.
    NoUser = 28, "no-user", "the program's user has no number of its own in its user namespace",
        "map the user in that namespace (unshare --map-current-user, subuid for containers)";
    /// The process can not put the names into shared memory by which others find it.
    NoPlace = 29, "no-place", "cannot say in /dev/shm, or in the folder of the configuration, that it has this end",
        "see that /dev/shm or SANSHIM_FOLDER is on this host, and that the program's user can make folders, files and sockets \
         there: sanctl check tells more";
    /// The other end is under the shim, in another network namespace or with another /dev/shm. The process finds one such process here,
    /// which may be its peer, or takes the peer for another host's; the reader of all processes' files knows better.
    OtherNamespace = 30, "other-namespace", "the other end has another /dev/shm or network namespace, as another container, or may have",
        "mount one folder into both containers, and name it in SANSHIM_FOLDER at both ends (docs/containers.md)";
    /// The program uses it past the hooks, as by asynchronous I/O of libc or the kernel.
    UnseenUse = 22, "unseen-use", "is on TCP because the program uses it in a way the shim cannot see",
        "have the program use plain socket calls for it, not asynchronous I/O, and wait in libc's select, poll or epoll";
}

impl Reason {
    /// The number that the registry stores.
    pub(crate) const fn as_u32(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_round_trip_and_unknown_ones_are_none() {
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_u32(reason.as_u32()), Some(reason));
        }
        let last = Reason::ALL.iter().map(|reason| reason.as_u32()).max().unwrap();
        assert_eq!(Reason::from_u32(last + 1), None);
        assert_eq!(Reason::from_u32(u32::MAX), None);
    }

    #[test]
    fn codes_are_kebab_case_and_unique() {
        let codes: HashSet<_> = Reason::ALL.iter().map(|reason| reason.code()).collect();
        assert_eq!(codes.len(), Reason::ALL.len());
        for code in codes {
            assert!(code.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{code}");
        }
    }

    #[test]
    fn sentences_are_unique_and_have_no_full_stop() {
        let sentences: HashSet<_> = Reason::ALL.iter().map(|reason| reason.sentence()).collect();
        assert_eq!(sentences.len(), Reason::ALL.len());
        let remedies = Reason::ALL.iter().map(|reason| reason.remedy());
        assert!(sentences.into_iter().chain(remedies).all(|sentence| !sentence.ends_with('.')));
    }
}
