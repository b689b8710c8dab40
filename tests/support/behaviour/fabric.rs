//! What is different where connections use what those between hosts use (docs/reference/other-hosts.md).

use super::{Carrier, Case};

/// Why connections go back to TCP on the way to another program, and their peers with them.
pub(super) const HANDED_ON: [&str; 2] = ["reason=handed-over", "reason=peer-returned"];
/// The same of one that becomes a standard stream on that way.
const STANDARD_STREAM: &str = "reason=unseen-use";

/// The area of the cases with O_ASYNC, with which no connection stays on a fabric.
const ASYNCHRONOUS: &str = "sigio";

/// The same of cases that are not run, and what is otherwise.
const OTHERWISE: [(&str, &str, &str); 11] = [
    ("control", "writers_are_killed", "a killed relative ends the connection"),
    ("endings", "killed_", "a killed process loses what was not delivered"),
    ("epoll_threads", "thousands_of_idle", "a connection takes five descriptors"),
    ("foreign", "a_cat_that_does_not_read_yet", "a killed process loses what was not delivered"),
    ("foreign", "cat_of_a_peer_that_is_killed", "a killed process loses what was not delivered"),
    ("interrupted", "receive_killed", "a relative that is killed with control ends the connection"),
    ("moving_steps", "the_", "a killed process loses what was not delivered"),
    ("steps", "following_killed_alone", "a killed relative ends the connection"),
    ("steps", "passed_killed_alone", "a killed process loses what was not delivered"),
    (
        "strangers",
        "an_allowed_user",
        "only processes of one user meet over shared memory's objects",
    ),
    ("transfer", "copies_forbidden", "to forbid it amid a transfer ends the queue pair"),
];

impl Case {
    fn is_of(&self, area: &str, beginning: &str) -> bool {
        self.program.area == area && self.name.starts_with(beginning)
    }

    /// Why it cannot be the same; `None`: it has to be.
    pub(super) fn is_otherwise_over_fabric(&self) -> Option<&'static str> {
        let is_it = |(area, beginning, _): &&(&str, &str, _)| self.is_of(area, beginning);
        OTHERWISE.iter().find(is_it).map(|(.., why)| *why)
    }

    /// What must carry its connections.
    pub(super) fn carrier_over_fabric(&self) -> Carrier {
        if self.program.area == ASYNCHRONOUS {
            Carrier::Any
        } else {
            self.carrier
        }
    }

    /// What of the log says where connections are that could be elsewhere.
    pub(super) fn on_fabric(&self, log: &str) -> String {
        let passing = HANDED_ON.iter().chain([&STANDARD_STREAM]);
        let may_be = |line: &&str| !passing.clone().any(|reason| line.contains(reason));
        log.lines().filter(may_be).flat_map(|line| [line, "\n"]).collect()
    }
}
