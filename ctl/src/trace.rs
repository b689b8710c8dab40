//! `sanctl trace`: what happens to a process's connections, as it happens.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use chrono::SecondsFormat;
use sanshim_core::registry::{self, Event, Events, Follower, Noted, RegistryPlace};
use serde::Serialize;

use crate::cli::TraceArguments;
use crate::happened::{sentence, value, Clock};
use crate::output::{complain, is_abandoned, print};

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// How long (ns) after a look the process notes frequent events. So it stops by itself when this program has gone.
const FOLLOW: u64 = 2_000_000_000;

/// An event for programs.
#[derive(Serialize)]
struct Line {
    time: String,
    fd: i32,
    local: Option<String>,
    peer: Option<String>,
    event: &'static str,
    value: serde_json::Value,
}

/// Shows events until the process ends. Gives the exit status.
pub(crate) fn trace(arguments: &TraceArguments) -> i32 {
    let pid = arguments.pid;
    let find = || registry::read_published().processes.into_iter().find(|one| one.pid == pid);
    let Some(process) = find() else {
        complain(&format!(
            "process {pid} does not run under the shim, or is another user's; see sanctl why {pid}"
        ));
        return 1;
    };
    match follow(arguments, &process.file) {
        Ok(status) => status,
        Err(error) => {
            complain(&format!("{}: {error}", process.file.path().display()));
            1
        }
    }
}

fn follow(arguments: &TraceArguments, file: &RegistryPlace) -> io::Result<i32> {
    let mut follower = Follower::of(file)?;
    if !arguments.past {
        follower.pass_over()?;
    }
    let mut shown = Shown::default();
    loop {
        // A user who may not write there sees no frequent events.
        let _ = follower.follow_for(FOLLOW);
        let has_ended = follower.has_ended();
        let read = match follower.read() {
            Err(_) if has_ended => return Ok(0),
            read => read?,
        };
        if !read.events.is_empty() || read.lost > 0 {
            let living = living(arguments.pid);
            let status = print(&shown.render(&read, living, arguments.json));
            if status != 0 {
                return Ok(status);
            }
        }
        if has_ended || arguments.once || is_abandoned() {
            return Ok(0);
        }
        std::thread::sleep(LOOK);
    }
}

/// A connection's descriptor, its own address, and the peer's.
type Ends = (i32, String, String);

/// What is known of connections, by number.
#[derive(Default)]
struct Shown {
    known: HashMap<usize, Ends>,
}

/// What the process says of its connections now.
fn living(pid: u32) -> HashMap<usize, Ends> {
    let processes = registry::read_published().processes.into_iter();
    let own = processes.filter(|one| one.pid == pid).flat_map(|one| one.connections);
    own.filter_map(|one| Some((one.number?, (one.fd, one.local.to_string(), one.peer.to_string()))))
        .collect()
}

impl Shown {
    /// The events as text. `living` are the connections that exist after them.
    fn render(&mut self, read: &Events, mut living: HashMap<usize, Ends>, json: bool) -> String {
        let clock = Clock::now();
        let mut text = String::new();
        if read.lost > 0 {
            let lost = format!("{} events were lost: too many at once", read.lost);
            if json {
                complain(&lost);
            } else {
                text = format!("({lost})\n");
            }
        }
        // A living connection has its number since the last event that opened it.
        let mut opened = HashMap::new();
        for (at, noted) in read.events.iter().enumerate() {
            if matches!(noted.event, Event::Opened(_)) {
                opened.insert(noted.connection, at);
            }
        }
        let before = living.extract_if(|number, _| !opened.contains_key(number));
        self.known.extend(before);
        for (at, noted) in read.events.iter().enumerate() {
            let number = noted.connection;
            if opened.get(&number) == Some(&at) {
                self.known.extend(living.remove_entry(&number));
            }
            let line = if json { self.as_json(noted, &clock) } else { self.as_line(noted, &clock) };
            text.push_str(&line);
            text.push('\n');
            if noted.event == Event::Closed {
                self.known.remove(&number);
            }
        }
        text
    }

    fn as_line(&self, noted: &Noted, clock: &Clock) -> String {
        let at = clock.shown(noted.time);
        let known = self.known.get(&noted.connection);
        let ends = known.map_or(String::new(), |(_, local, peer)| format!(" {local} {peer}"));
        format!("{at}  fd {}{ends}: {}", self.fd(noted), sentence(noted.event))
    }

    fn as_json(&self, noted: &Noted, clock: &Clock) -> String {
        let known = self.known.get(&noted.connection).cloned();
        let (local, peer) = known.map(|(_, local, peer)| (local, peer)).unzip();
        let time = clock.at(noted.time).to_rfc3339_opts(SecondsFormat::Micros, false);
        let (event, value) = (noted.event.name(), value(noted.event));
        let line = Line { time, fd: self.fd(noted), local, peer, event, value };
        serde_json::to_string(&line).unwrap_or_default()
    }

    /// The event's descriptor. If the connection has none any more, the last one that is known.
    fn fd(&self, noted: &Noted) -> i32 {
        let known = self.known.get(&noted.connection).map(|(fd, _, _)| *fd);
        known.filter(|_| noted.fd < 0).unwrap_or(noted.fd)
    }
}
