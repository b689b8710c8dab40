//! `sanctl why`: what happened to a connection, and what would have to change for it to be on the SAN.

mod connection;
mod other_end;
mod outside;

use std::fmt::Write;

use sanshim_core::reason::Reason;
use sanshim_core::registry::{self, Process};

use crate::cli::WhyArguments;
use crate::output::{complain, print};
use crate::who::who;

/// Says why, and gives the exit status.
pub(crate) fn why(arguments: &WhyArguments) -> i32 {
    let snapshot = registry::read_all();
    let Some(process) = snapshot.processes.iter().find(|one| one.pid == arguments.pid) else {
        return match outside::explain(arguments.pid, &snapshot.problems) {
            Ok(text) => print(&text),
            Err(why) => {
                complain(&why);
                1
            }
        };
    };
    let Some(fd) = arguments.fd else { return print(&all(process)) };
    match process.connections.iter().find(|one| one.fd == fd) {
        Some(found) => print(&connection::explain(process, found, &snapshot.processes)),
        None => {
            complain(&format!(
                "process {} has no TCP socket with descriptor {fd}; sanctl status --pid {} lists them",
                process.pid, process.pid
            ));
            1
        }
    }
}

/// The process's connections, by reason.
fn all(process: &Process) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{} runs under the shim.", who(process));
    if process.connections.is_empty() {
        text.push_str("It has no TCP sockets now.\n");
    }
    for &reason in Reason::ALL {
        let fds: Vec<_> = process
            .connections
            .iter()
            .filter(|one| one.reason == reason)
            .map(|one| one.fd)
            .collect();
        if let Some(first) = fds.first() {
            let (many, sentence) = (fds.len(), reason.sentence());
            let _ = writeln!(text, "\n{}: {sentence}", sockets(many));
            push_remedy(&mut text, reason);
            let _ = writeln!(text, "  One of them: sanctl why {} {first}", process.pid);
        }
    }
    text
}

fn sockets(many: usize) -> String {
    format!("{many} socket{}", if many == 1 { "" } else { "s" })
}

/// Adds what to do, if there is something.
fn push_remedy(text: &mut String, reason: Reason) {
    if !reason.remedy().is_empty() {
        let _ = writeln!(text, "  What to do: {}.", reason.remedy());
    }
}
