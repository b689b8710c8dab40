//! `sanctl detach`: asks a process to move connections back to TCP.

use std::time::{Duration, Instant};

use sanshim_core::fabric;
use sanshim_core::registry::{self, OnSan, Process, Requests};

use crate::cli::DetachArguments;
use crate::output::{complain, print};
use crate::progress::ProgressLine;

/// How long to wait before looking again what became of the request.
const LOOK: Duration = Duration::from_millis(2);
/// How long the process has to notice the request. Then its helper thread is woken, if it has one.
const UNTIL_HELPER: Duration = Duration::from_millis(20);

/// Makes the request, waits for what comes of it, and gives the exit status.
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
        complain(&format!("process {pid} does not run under the shim, or is another user's; sanctl why {pid} tells"));
        return 1;
    };
    let request = || {
        let requests = Requests::to(&process.file)?;
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
            complain(&format!("{}: {error}", process.file.path().display()));
            return 1;
        }
    };
    if asked.is_empty() {
        return print(&match fd {
            None => format!("Process {pid} has no connections on the SAN.\n"),
            Some(fd) => {
                format!("Process {pid} has no connection on the SAN with descriptor {fd}.\n")
            }
        });
    }
    await_return(&requests, &asked, Duration::from_millis(arguments.wait))
}

/// Waits no longer than `wait`, and says how many connections went back.
fn await_return(requests: &Requests, asked: &[OnSan], wait: Duration) -> i32 {
    let started = Instant::now();
    let is_over = || started.elapsed() >= wait;
    let (mut is_helped, mut hindered) = (false, None);
    let mut progress = ProgressLine::new(asked.len(), "went back to TCP");
    loop {
        let mut left: Vec<_> = asked.iter().filter_map(|one| requests.again(one)).collect();
        if !requests.is_answered_for() {
            left.clear();
        }
        progress.set(asked.len() - left.len());
        if left.is_empty() {
            drop(progress);
            return print(&format!("{} went back to TCP.\n", asked.len()));
        }
        if is_over() {
            drop(progress);
            let gone = asked.len() - left.len();
            let why = hindered.map_or(String::new(), |why| format!(" (cannot wake it: {why})"));
            return print(&format!(
                "{gone} of {} went back to TCP; the others do when the process next uses them{why}.\n",
                asked.len()
            ));
        }
        if !is_helped && started.elapsed() >= UNTIL_HELPER {
            hindered = requests.helper().and_then(|helper| fabric::call(helper).err());
            is_helped = true;
        }
        std::thread::sleep(LOOK);
    }
}

fn find(pid: u32) -> Option<Process> {
    registry::read_published().processes.into_iter().find(|process| process.pid == pid)
}
