//! `sanctl detach`: asks a process to move connections back to TCP.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sanshim_core::registry::{self, OnSan, Process, Requests};
use sanshim_core::switch::from_outside;

use crate::cli::DetachArguments;
use crate::output::{complain, print};

/// How often it is looked what became of the request.
const LOOK: Duration = Duration::from_millis(2);
/// How long the process has to hear it; afterwards it is begun in its stead. And the peer, to follow.
const TURN: Duration = Duration::from_millis(20);

/// Makes the request, waits for it and returns the exit status.
pub(crate) fn detach(arguments: &DetachArguments) -> i32 {
    let pid = arguments.pid;
    let fd: Option<i32> = match arguments.connection.as_str() {
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
    let request = || {
        let requests = Requests::to(&process.file, pid)?;
        let mut asked = requests.on_san()?;
        asked.retain(|connection| fd.is_none_or(|fd| fd == connection.fd));
        if !asked.is_empty() {
            requests.detach(&asked)?;
        }
        std::io::Result::Ok((requests, asked))
    };
    let (requests, asked) = match request() {
        Ok(request) => request,
        Err(error) => {
            complain(&format!("{}: {error}", process.file.display()));
            return 1;
        }
    };
    if asked.is_empty() {
        return print(&format!("Process {pid} has no such connection on the SAN.\n"));
    }
    await_return(&requests, &asked, Duration::from_millis(arguments.wait))
}

/// Says how many went back within `wait`.
fn await_return(requests: &Requests, asked: &[OnSan], wait: Duration) -> i32 {
    let started = Instant::now();
    let is_over = || started.elapsed() >= wait;
    let (mut helped, mut hindered) = (0, None);
    loop {
        let mut left: Vec<_> = asked.iter().filter_map(|one| requests.again(one)).collect();
        if !requests.is_answered_for() {
            left.clear();
        }
        if left.is_empty() {
            return print(&format!("{} went back to TCP.\n", asked.len()));
        }
        if is_over() {
            let gone = asked.len() - left.len();
            let why = hindered.map_or(String::new(), |why| format!(" (cannot wake it: {why})"));
            return print(&format!(
                "{gone} of {} went back to TCP; the others do when the process next uses them{why}.\n",
                asked.len()
            ));
        }
        if helped < 2 && started.elapsed() >= TURN * (helped + 1) {
            let mut leave = |requests: &Requests, end: &OnSan| {
                if !is_over() {
                    hindered = hindered.or(from_outside::leave(requests, end).err());
                }
            };
            match helped {
                0 => {
                    left.iter().for_each(|one| leave(requests, one));
                    if left.iter().any(|one| one.within_reach.is_none()) {
                        hindered = hindered.or(from_outside::call_helper(requests).err());
                    }
                }
                _ => each_peer(&left, leave),
            }
            helped += 1;
        }
        std::thread::sleep(LOOK);
    }
}

/// Calls `each` with the other ends of these, whose processes may be elsewhere too.
fn each_peer(of: &[OnSan], mut each: impl FnMut(&Requests, &OnSan)) {
    let wanted: HashSet<_> = of.iter().map(|one| (one.peer, one.local)).collect();
    for process in registry::read_published().processes {
        let Ok(requests) = Requests::to(&process.file, process.pid) else { continue };
        let ends = requests.on_san().unwrap_or_default();
        for end in ends.iter().filter(|end| wanted.contains(&(end.local, end.peer))) {
            each(&requests, end);
        }
    }
}

fn find(pid: u32) -> Option<Process> {
    registry::read_published().processes.into_iter().find(|process| process.pid == pid)
}
