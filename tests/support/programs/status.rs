//! What `sanctl status --json` says about the programs of a test.

use super::{eventually_within, locate, Mode, Running};
use serde_json::Value;
use std::cell::RefCell;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// One connection of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The process.
    pub pid: u32,
    /// Its descriptor.
    pub fd: i64,
    /// Its own address and port.
    pub local: String,
    /// The other end's.
    pub peer: String,
    /// `shm`, `verbs` or `tcp`.
    pub provider: String,
    /// Why, as a stable code.
    pub reason: String,
    /// Where in its life it is.
    pub state: String,
}

/// The reasons of the entries that are sockets, but not connections.
const UNCONNECTED: [&str; 2] = ["listener", "not-connected"];

/// A connection that is not where it should be by then never will be.
const LIMIT: Duration = Duration::from_secs(20);

/// Why a connection with a native peer is on TCP, once its end has looked for the other often enough.
pub const PEER_NATIVE: &str = "peer-native";
/// Why one is that makes next to no transfers.
pub const QUIET: &str = "quiet";

/// Every connection of the given processes, without listeners and the like.
pub fn connections(pids: &[u32]) -> Vec<Connection> {
    entries(pids).iter().map(|(pid, entry)| parse(*pid, entry)).collect()
}

/// The same as `sanctl status --json` prints them, with their processes.
pub fn entries(pids: &[u32]) -> Vec<(u32, Value)> {
    let output = Command::new(locate::sanctl()).args(["status", "--json"]).output();
    let output = output.expect("sanctl status --json runs");
    assert!(
        output.status.success(),
        "sanctl status --json ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("a JSON object");
    let processes = report["processes"].as_array().expect("an array of processes");
    processes
        .iter()
        .map(|process| (process["pid"].as_u64().expect("a pid") as u32, process))
        .filter(|(pid, _)| pids.contains(pid))
        .flat_map(|(pid, process)| {
            let connections = process["connections"].as_array().expect("an array of connections");
            connections.iter().map(move |entry| (pid, entry.clone()))
        })
        .filter(|(_, entry)| !UNCONNECTED.contains(&entry["reason"].as_str().unwrap_or_default()))
        .collect()
}

fn parse(pid: u32, entry: &Value) -> Connection {
    let text = |name: &str| match &entry[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => panic!("'{name}' of a connection is {other}, not a string"),
    };
    Connection {
        pid,
        fd: entry["fd"].as_i64().expect("a descriptor number"),
        local: text("local"),
        peer: text("peer"),
        provider: text("provider"),
        reason: text("reason"),
        state: text("state"),
    }
}

/// Every process below `root` in the process tree, and itself.
pub fn family(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name, in parentheses, may hold anything: the fields begin after the last one.
            let parent = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?;
            Some((pid, parent.parse().ok()?))
        })
        .collect();
    let mut family = vec![root];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        family.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    family
}

impl Mode {
    /// Under the shim: waits until `program` and its descendants have at least `count` connections
    /// and all of them are on shared memory. Natively there is nothing to ask.
    pub fn expect_shm(self, program: &Running, count: usize) {
        if self == Mode::Shim {
            expect(program, count, "on shared memory", |connection| connection.provider == "shm");
        }
    }
}

/// Waits until `program` and its descendants have at least `count` connections and all of them are on
/// TCP for `reason`.
pub fn expect_tcp(program: &Running, count: usize, reason: &str) {
    expect_tcp_of(program, count, &[reason]);
}

/// The same with a native peer and little traffic: the connection may not be worth a look for its other end.
pub fn expect_native_peer(program: &Running, count: usize) {
    expect_tcp_of(program, count, &[PEER_NATIVE, QUIET]);
}

/// The same where the peer is under the shim, and does not look for it.
pub fn expect_peer_that_stays(program: &Running, count: usize) {
    expect_tcp_of(program, count, &["peer-stays", "pending", QUIET]);
}

/// The same for one of some reasons.
pub fn expect_tcp_of(program: &Running, count: usize, reasons: &[&str]) {
    expect(program, count, &reasons.join(" or "), |connection| {
        connection.provider == "tcp" && reasons.contains(&connection.reason.as_str())
    });
}

fn expect(program: &Running, count: usize, what: &str, good: impl Fn(&Connection) -> bool) {
    let seen = RefCell::new(Vec::new());
    eventually_within(
        LIMIT,
        || {
            program.assert_alive();
            let now = connections(&family(program.pid()));
            let found = now.len() >= count && now.iter().all(&good);
            seen.replace(now);
            found.then_some(())
        },
        || {
            let (seen, output) = (seen.borrow(), program.output());
            format!("never {count} connections, all {what}; at last {seen:#?}\n{output}")
        },
    );
}
