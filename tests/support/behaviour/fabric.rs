//! What is different where connections use what those between hosts use (docs/reference/other-hosts.md).

use super::{Carrier, Case};
use std::ffi::OsString;

/// Why connections go back to TCP on the way to another program, and their peers with them.
pub(super) const HANDED_ON: [&str; 2] = ["reason=handed-over", "reason=peer-returned"];
/// The same of one that becomes a standard stream on that way.
const STANDARD_STREAM: &str = "reason=unseen-use";

/// The area of the cases with O_ASYNC, with which no connection stays on a fabric.
const ASYNCHRONOUS: &str = "sigio";

/// Cases that are not run, by their area and the beginning of their names, and what is otherwise.
const OTHERWISE: [(&str, &str, &str); 29] = [
    ("batches", "an_error_comes_before", RESET),
    ("control", "writers_are_killed", "a killed relative ends the connection"),
    ("ended", "both_ended", STATE),
    ("ended", "reset_by_what_came", STATE),
    ("ended", "reset_with_something_unread", RESET),
    ("endings", "killed_", KILLED),
    ("endings", "linger_zero_behind_both_ends", RESET),
    ("epoll_threads", "thousands_of_idle", DESCRIPTORS),
    ("few_descriptors", "all_below_a_higher", DESCRIPTORS),
    ("few_descriptors", "all_files_below", DESCRIPTORS),
    ("few_descriptors", "all_that_may_be_had", DESCRIPTORS),
    ("foreign", "a_cat_that_does_not_read_yet", KILLED),
    ("foreign", "cat_after_a_close", GONE),
    ("foreign", "cat_of_a_peer_that_is_killed", KILLED),
    (
        "handlers",
        "close_what_is_waited_on",
        "a signal that came amid a look at the adapter ends a poll",
    ),
    ("images", "an_image_reads_a_little", GONE),
    ("images", "an_image_reads_what_who_closed", GONE),
    ("interrupted", "receive_killed", "a relative that is killed with control ends the connection"),
    ("killed", "a_sender_just_before_its", KILLED),
    ("moving", "an_end_that_is_killed", KILLED),
    ("moving_steps", "the_", KILLED),
    ("order", "a_message_before_a_pipe_in_an_answer", "nothing orders a link and a pipe"),
    ("quiet", "a_stream_that_slowed_down_is", KILLED),
    ("stacks", "of_", "calls take more of the stack"),
    ("steps", "following_killed_alone", "a killed relative ends the connection"),
    ("steps", "passed_killed_alone", KILLED),
    ("strangers", "an_allowed_user", USERS),
    ("transfer", "copies_forbidden", "to forbid it amid a transfer ends the queue pair"),
    ("users", "a", USERS),
];
/// The same where they go over devices, between the two hosts of the RDMA guest.
const OTHERWISE_ON_A_WIRE: [(&str, &str, &str); 37] = [
    ("accept", "accepted_options_inherited", "the kernel wakes nobody for less than SO_RCVLOWAT"),
    ("accept", "all_local_addresses", OWN_ADDRESSES),
    ("accept", "deferred_before_listen", OWN_ADDRESSES),
    ("accept", "listen_unbound", OWN_ADDRESSES),
    ("accept", "other_loopback_addresses", OWN_ADDRESSES),
    ("accept", "specific_beside_wildcard", OWN_ADDRESSES),
    ("accept", "v6_socket_to_v4_listener", OWN_ADDRESSES),
    ("accept", "wildcard_", OWN_ADDRESSES),
    ("behind", "", "a flooded end does not read as far as its peer's turn"),
    ("busy", "no_system_call", "Soft-RoCE sends by a system call"),
    ("connect", "bound_source", OWN_ADDRESSES),
    ("connect", "bytes_in_the_first_segment_by", OWN_ADDRESSES),
    ("descriptors", "close_everything", CLOSED),
    ("descriptors", "open_and_close_many", SLOW),
    ("errno", "descriptors_on_the_san", CLOSED),
    ("foreign", "a_go_program", NO_COMPILER),
    ("foreign", "a_setuid_program", NO_COMPILER),
    ("foreign", "a_static_program", NO_COMPILER),
    ("handover", "vfork_exec", VFORK),
    ("hostile", "claimed_by_one_that_sends_no_more", "TCP has more room on a wire"),
    ("images", "exec_does_not_wait_for_room", MUCH),
    ("images", "failed_exec_and_spawn", SLOW),
    ("images", "five_images_after_vfork", VFORK),
    ("images", "numbers_are_as_without_us", CLOSED),
    ("images", "vfork_exec", VFORK),
    ("many", "opened_used_left_idle", SLOW),
    ("mixed", "separate_server_program", SHORT),
    ("moving", "a_program_that_writes_before_it_reads", SHORT),
    ("moving", "a_reset_that_overtakes_bytes", SHORT),
    ("moving", "a_level_triggered_set", SHORT),
    ("moving", "a_set_that_reports", SHORT),
    ("moving", "an_edge", SHORT),
    ("moving", "an_exclusive_set", SHORT),
    ("old_kernel", "without_close_range", CLOSED),
    ("refused", "a_send_tells_the_reset", "the reset is on its way while it sends"),
    ("scarce", "no_descriptors_allowed_before", DESCRIPTORS),
    ("set_up", "port_used_again", OWN_ADDRESSES),
];
const NO_COMPILER: &str = "the guest has no compiler for what it executes";
const SHORT: &str = "it is over before its connections have come to RDMA";
const SLOW: &str = "it takes too long where the processor is emulated";
const VFORK: &str = "the kernel lets no vfork child send by Soft-RoCE's system call";
const CLOSED: &str = "a program that closes all descriptors closes the device's";
const OWN_ADDRESSES: &str = "its addresses are those of one host";
const DESCRIPTORS: &str = "a connection takes five descriptors";
const GONE: &str =
    "a program cannot get the connection of a peer that is gone with something unread";
const MUCH: &str =
    "TCP has no room for what is unread, and nobody sends the rest of a process that is gone";
/// A connection whose other end did not come, and one that did.
const UNREACHABLE: &str = "reason=unreachable";
const ON_SAN: &str = "reason=on-san";
const KILLED: &str = "a killed process loses what was not delivered";
const RESET: &str = "a reset comes over TCP, and may come before what was sent over the link";
const STATE: &str = "TCP's own state is that of the connection beneath";
const USERS: &str = "only processes of one user meet over shared memory's objects";

/// What those connections go over: the provider for devices that the environment names, or the objects of shared memory.
pub(super) fn provider() -> OsString {
    provider_on_a_wire().unwrap_or_else(|| "shm-objects".into())
}

fn provider_on_a_wire() -> Option<OsString> {
    std::env::var_os("BT_PROVIDERS")
}

impl Case {
    fn is_of(&self, area: &str, beginning: &str) -> bool {
        self.program.area == area && self.name.starts_with(beginning)
    }

    /// Why it cannot be the same; `None`: it has to be.
    pub(super) fn is_otherwise_over_fabric(&self) -> Option<&'static str> {
        let is_it = |(area, beginning, _): &&(&str, &str, _)| self.is_of(area, beginning);
        let wire: &[_] = if provider_on_a_wire().is_some() { &OTHERWISE_ON_A_WIRE } else { &[] };
        OTHERWISE.iter().chain(wire).find(is_it).map(|(.., why)| *why)
    }

    /// What must carry its connections.
    pub(super) fn carrier_over_fabric(&self) -> Carrier {
        if self.program.area == ASYNCHRONOUS {
            Carrier::Any
        } else {
            self.carrier
        }
    }

    /// What of the log says where connections are that could be elsewhere. Where a processor is slow to come to both ends, one
    /// that came later may have sought the other in vain before.
    pub(super) fn on_fabric(&self, log: &str) -> String {
        let passing = HANDED_ON.iter().chain([&STANDARD_STREAM]);
        let may_be = |line: &str| !passing.clone().any(|reason| line.contains(reason));
        let lines: Vec<&str> = log.lines().collect();
        let comes_later = |(at, line): (usize, &str)| {
            let is_its = |other: &&str| {
                other.contains(ON_SAN) && end_of(other).is_some_and(|end| Some(end) == end_of(line))
            };
            line.contains(UNREACHABLE) && lines[at..].iter().any(is_its)
        };
        let kept =
            lines.iter().enumerate().filter(|(at, line)| may_be(line) && !comes_later((*at, line)));
        kept.flat_map(|(_, line)| [*line, "\n"]).collect()
    }
}

/// Which end of a connection a line of the log is of. `None`: the line does not say.
fn end_of(line: &str) -> Option<(&str, &str)> {
    Some((line.split_once(" provider=")?.0, line.split_once(" role=")?.1))
}

#[cfg(test)]
mod tests {
    use super::super::Program;
    use super::*;

    #[test]
    fn one_that_came_later_was_unreachable_before() {
        let program = Program { area: "area".into(), path: "program".into() };
        let case = Case { program, name: "case".into(), carrier: Carrier::San };
        let sought = "pid: fd 5: A B provider=tcp reason=unreachable role=acceptor\n";
        let came = "pid: fd 5: A B provider=verbs reason=on-san role=acceptor\n";
        let other = "pid: fd 6: A C provider=verbs reason=on-san role=acceptor\n";
        assert_eq!(case.on_fabric(&[sought, came].concat()), came);
        assert_eq!(case.on_fabric(&[sought, other].concat()), [sought, other].concat());
        assert_eq!(case.on_fabric(&[came, sought].concat()), [came, sought].concat());
        // These lines do not say which connection they are of.
        let short =
            ["fd 5: provider=tcp reason=unreachable\n", "fd 6: provider=verbs reason=on-san\n"];
        assert_eq!(case.on_fabric(&short.concat()), short.concat());
    }
}
