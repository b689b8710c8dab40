//! `sanctl status`: what the processes under the shim publish.

mod detail;
mod json;
mod sharing;
mod table;

use std::path::Path;

use sanshim_core::registry::{self, Snapshot};

use self::sharing::Sharing;
use crate::cli::StatusArguments;
use crate::output::{complain, print};

/// Prints the connections and returns the exit status.
pub(crate) fn status(arguments: &StatusArguments) -> i32 {
    let mut snapshot = match &arguments.registry {
        Some(folder) => registry::read_folder(folder),
        None => registry::read_all(),
    };
    for problem in &snapshot.problems {
        complain(&problem.to_string());
    }
    // All processes count, not only those that are shown.
    let sharing = Sharing::of(&snapshot.processes);
    let runs_any = !snapshot.processes.is_empty();
    arguments.filter.apply(&mut snapshot.processes);
    let Snapshot { processes, .. } = snapshot;
    match (arguments.json, arguments.filter.pid) {
        (true, _) => print(&json::render(&processes, &sharing)),
        (false, _) if processes.is_empty() && runs_any && arguments.filter.chooses() => {
            print("Nothing under the shim is so. All that runs under it shows: sanctl status\n")
        }
        (false, Some(pid)) if processes.is_empty() => {
            print(&match Path::new(&format!("/proc/{pid}")).exists() {
                true => format!("Process {pid} publishes nothing; why: sanctl why {pid}\n"),
                false => format!("Process {pid} does not run.\n"),
            })
        }
        (false, None) if processes.is_empty() => {
            print("No program runs under the shim. Start one with: sanctl run -- PROGRAM ARGS...\n")
        }
        _ => print(&table::render(&processes, arguments.verbose.then_some(&sharing))),
    }
}
