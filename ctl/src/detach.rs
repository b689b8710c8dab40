//! `sanctl detach`: asks a process to move connections back to TCP.

use std::time::{Duration, Instant};

use sanshim_core::registry::{self, Process, Provider};

use crate::cli::DetachArguments;
use crate::output::{complain, print};

/// How often the process is asked what became of it.
const LOOK: Duration = Duration::from_millis(2);

/// Makes the request, waits for it and returns the exit status.
pub(crate) fn detach(arguments: &DetachArguments) -> i32 {
    let pid = arguments.pid;
    let fd = match arguments.connection.as_str() {
        "all" => None,
        number => match number.parse() {
            Ok(fd) => Some(fd),
            Err(_) => {
                complain(&format!("{number}: neither a descriptor nor \"all\""));
                return 2;
            }
        },
    };
    let Some(process) = find(pid) else {
        complain(&format!("process {pid} does not run under the shim, or is another user's"));
        return 1;
    };
    let asked = match registry::request_detach(&process.file, pid, fd) {
        Ok(asked) => asked,
        Err(error) => {
            complain(&format!("{}: {error}", process.file.display()));
            return 1;
        }
    };
    if asked == 0 {
        return print(&format!("Process {pid} has no such connection on the SAN.\n"));
    }
    let deadline = Instant::now() + Duration::from_millis(arguments.wait);
    loop {
        let left = find(pid).map_or(0, |process| on_san(&process, fd));
        if left == 0 {
            return print(&format!("{asked} went back to TCP.\n"));
        }
        if Instant::now() >= deadline {
            return print(&format!(
                "{} of {asked} went back to TCP; the others do when the process next uses them.\n",
                asked.saturating_sub(left)
            ));
        }
        std::thread::sleep(LOOK);
    }
}

fn find(pid: u32) -> Option<Process> {
    registry::read_all().processes.into_iter().find(|process| process.pid == pid)
}

/// How many of the connections meant are on the SAN.
fn on_san(process: &Process, fd: Option<i32>) -> usize {
    let meant = |c: &&registry::Connection| {
        c.provider != Provider::Tcp && c.peer.port() != 0 && fd.is_none_or(|fd| fd == c.fd)
    };
    process.connections.iter().filter(meant).count()
}
