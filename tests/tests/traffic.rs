//! What `sanctl status --json` says of real traffic, and `sanctl detach` of one connection among several.

use std::fs;
use std::process::{Command, Output};

use sanshim_tests::programs::{eventually, locate, status, Mode, Running, Sandbox};
use serde_json::{json, Value};

/// tests/programs/exchanges.py under the shim.
struct Exchanges {
    program: Running,
    /// The descriptors of the connecting and the accepting ends.
    ends: Vec<[i64; 2]>,
    /// Bytes that both ends of each sent and received over the SAN before, to come there.
    before: Vec<[[u64; 2]; 2]>,
    lines: u32,
    _sandbox: Sandbox,
}

impl Exchanges {
    fn start(count: usize) -> Exchanges {
        let sandbox = Sandbox::new();
        let helper = locate::helper("exchanges.py");
        let helper = helper.to_str().expect("a path in UTF-8");
        let program = sandbox.start(Mode::Shim, locate::python(), [helper, &count.to_string()]);
        let numbers = program.wait_for_line("ends ");
        let numbers = numbers.split_whitespace().map(|number| number.parse().expect("a number"));
        let numbers: Vec<i64> = numbers.collect();
        let ends: Vec<[i64; 2]> = numbers.chunks(2).map(|ends| [ends[0], ends[1]]).collect();
        assert_eq!(ends.len(), count);
        let _sandbox = sandbox;
        let mut exchanges = Exchanges { program, ends, before: Vec::new(), lines: 0, _sandbox };
        exchanges.before = vec![[[0; 2]; 2]; count];
        exchanges.before = (0..count).map(|number| exchanges.bytes(number)).collect();
        exchanges
    }

    fn ask(&mut self, line: &str) {
        self.lines += 1;
        self.program.write(&format!("{line}\n"));
        self.program.wait_for_line(&format!("done {}", self.lines));
    }

    fn process(&self) -> Value {
        process(self.program.pid())
    }

    /// What sanctl says of both ends of a connection.
    fn pair(&self, number: usize) -> [Value; 2] {
        let process = self.process();
        let connections = process["connections"].as_array();
        let connections = connections.unwrap_or_else(|| panic!("no process: {process}"));
        self.ends[number].map(|fd| {
            let end = connections.iter().find(|connection| connection["fd"] == fd);
            end.unwrap_or_else(|| panic!("no descriptor {fd} in {process}")).clone()
        })
    }

    /// Bytes that both ends of a connection have sent and received since.
    fn bytes(&self, number: usize) -> [[u64; 2]; 2] {
        let now = self.pair(number).map(|end| ["sent", "received"].map(|way| bytes(&end, way)));
        [0, 1].map(|end| [0, 1].map(|way| now[end][way] - self.before[number][end][way]))
    }

    fn detach(&self, what: &str) -> Output {
        sanctl(&["detach", "--wait", "0", &self.program.pid().to_string(), what])
    }
}

fn sanctl(arguments: &[&str]) -> Output {
    Command::new(locate::sanctl()).args(arguments).output().expect("sanctl runs")
}

fn process(pid: u32) -> Value {
    let output = sanctl(&["status", "--json", "--pid", &pid.to_string()]);
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    status["processes"][0].clone()
}

fn bytes(end: &Value, way: &str) -> u64 {
    number(&end[way]["bytes"])
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn bytes_messages_and_credits_are_those_of_the_exchanges() {
    const TIMES: u64 = 200;
    let mut exchanges = Exchanges::start(2);
    exchanges.ask(&format!("exchange {TIMES} 100 1000"));
    for pair in [0, 1] {
        let moved = [TIMES * 100, TIMES * 1000];
        assert_eq!(exchanges.bytes(pair), [moved, [moved[1], moved[0]]]);
        for end in exchanges.pair(pair) {
            assert_eq!((&end["provider"], &end["reason"]), (&json!("shm"), &json!("on-san")));
            assert_eq!(end["state"], "established", "{end}");
            // A request waits for the answer to the one before: none can share a message.
            assert!(number(&end["sent"]["messages"]) >= TIMES - 1, "{end}");
            assert!(number(&end["received"]["messages"]) >= TIMES - 1, "{end}");
            assert_eq!(end["buffered_bytes"], 0, "{end}");
        }
    }
    // Each message that nobody receives takes a credit. The first send takes in what came back before it.
    exchanges.ask("send 1");
    let before = number(&exchanges.pair(0)[0]["credits"]);
    assert!((6..=16).contains(&before), "{before}");
    exchanges.ask("send 5");
    let [connector, _] = exchanges.pair(0);
    assert_eq!(number(&connector["credits"]), before - 5, "{connector}");
    let [[sent, _], [_, received]] = exchanges.bytes(0);
    assert_eq!((sent, received), (TIMES * 100 + 6, TIMES * 100));
    exchanges.ask("receive 6");
    assert_eq!(exchanges.bytes(0)[1][1], TIMES * 100 + 6);
}

#[test]
fn a_peer_is_woken_only_when_it_sleeps() {
    let mut exchanges = Exchanges::start(1);
    exchanges.ask("exchange 10 1 1");
    let wakeups = |exchanges: &Exchanges| exchanges.pair(0)[0]["wakeups"].clone();
    let before = wakeups(&exchanges);
    // Nobody waits for these.
    exchanges.ask("send 8");
    exchanges.ask("receive 8");
    let after = wakeups(&exchanges);
    assert_eq!(after["sent"], before["sent"], "{after}");
    assert!(number(&after["avoided"]) >= number(&before["avoided"]) + 8, "{before} {after}");
    // Who waits may still be spinning.
    // What woke it is counted there when it next goes to sleep.
    let mut tries = 0;
    while wakeups(&exchanges)["sent"] == after["sent"]
        || exchanges.pair(0)[1]["wakeups"]["received"] == 0
    {
        exchanges.ask("asleep");
        tries += 1;
        assert!(tries < 200, "never woken: {:?}", exchanges.pair(0));
    }
}

#[test]
fn the_state_follows_each_directions_end() {
    let mut exchanges = Exchanges::start(1);
    let states = |exchanges: &Exchanges| exchanges.pair(0).map(|end| end["state"].clone());
    exchanges.ask("exchange 1 1 1");
    assert_eq!(states(&exchanges), [json!("established"), json!("established")]);
    exchanges.ask("half-close");
    assert_eq!(states(&exchanges), [json!("fin-wait"), json!("close-wait")]);
    exchanges.ask("close");
    assert_eq!(states(&exchanges), [json!("closing"), json!("closing")]);
}

#[test]
fn one_connection_of_several_is_detached() {
    let mut exchanges = Exchanges::start(3);
    exchanges.ask("exchange 10 100 3000");
    assert_eq!(exchanges.process()["returned"], json!({}));
    let output = exchanges.detach(&exchanges.ends[1][0].to_string());
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("of 1 went back to TCP"),
        "{output:?}"
    );
    // It looks for requests at most every 100 us while it uses its connections.
    let mut tries = 0;
    while exchanges.pair(1).iter().any(|end| end["provider"] != "tcp") {
        exchanges.ask("exchange 10 100 3000");
        tries += 1;
        assert!(tries < 200, "never went back: {:?}", exchanges.pair(1));
    }
    exchanges.ask("exchange 10 100 3000");
    let [connector, acceptor] = exchanges.pair(1);
    assert_eq!((&connector["reason"], &connector["provider"]), (&json!("detached"), &json!("tcp")));
    assert_eq!(
        (&acceptor["reason"], &acceptor["provider"]),
        (&json!("peer-returned"), &json!("tcp"))
    );
    for other in [0, 2] {
        for end in exchanges.pair(other) {
            assert_eq!((&end["reason"], &end["provider"]), (&json!("on-san"), &json!("shm")));
        }
    }
    assert_eq!(exchanges.process()["returned"], json!({ "detached": 1, "peer-returned": 1 }));
}

#[test]
fn what_cannot_be_detached_is_named() {
    let mut exchanges = Exchanges::start(1);
    let own = std::process::id().to_string();
    let pid = exchanges.program.pid().to_string();
    let listener = (exchanges.ends[0][0] - 1).to_string();
    let nothing =
        |fd: &str| format!("Process {pid} has no connection on the SAN with descriptor {fd}.\n");
    let (missing, listening) = (nothing("9999"), nothing(&listener));
    for (arguments, status, stdout, stderr) in [
        ([pid.as_str(), "9999"], 0, missing.as_str(), String::new()),
        ([pid.as_str(), &listener], 0, listening.as_str(), String::new()),
        ([pid.as_str(), "all of them"], 2, "", "neither a descriptor nor \"all\"".to_owned()),
        ([own.as_str(), "all"], 1, "", format!("process {own} does not run under the shim")),
        (["0", "all"], 1, "", "process 0 does not run under the shim".to_owned()),
    ] {
        let output = sanctl(&["detach", arguments[0], arguments[1]]);
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {out}{err}");
        assert_eq!(out, stdout, "{arguments:?}");
        assert!(
            err.contains(&stderr) && err.is_empty() == stderr.is_empty(),
            "{arguments:?}: {err}"
        );
    }
    exchanges.ask("exchange 10 1 1");
    assert!(exchanges.pair(0).iter().all(|end| end["provider"] == "shm"));
}

/// The process that has control is stopped while it sends; another that wants to is shown to wait.
#[test]
fn who_waits_for_control_is_shown() {
    let sandbox = Sandbox::new();
    let helper = locate::helper("contended.py");
    let helper = helper.to_str().expect("a path in UTF-8");
    let mut program = sandbox.start(Mode::Shim, locate::python(), [helper]);
    program.wait_for_line("ready");
    let pid = program.pid();
    let waiting = || {
        let entries = status::entries(&status::family(pid));
        entries.iter().any(|(_, entry)| entry["control"]["send"]["waiters"] == 1)
    };
    let (mut found, mut asked) = (false, 0);
    // It may be stopped between two transfers: then nobody waits.
    for _ in 0..100 {
        asked += 1;
        program.write("stop\n");
        program.wait_for_line(&format!("done {asked}"));
        found = (0..20).any(|_| waiting());
        asked += 1;
        program.write("go on\n");
        program.wait_for_line(&format!("done {asked}"));
        if found {
            break;
        }
    }
    assert!(found, "nobody was ever shown to wait");
    assert!(!waiting());
    program.finish();
}

/// Provider, reason and state, as sanctl calls them.
type Shown = [&'static str; 3];

/// There is no such descriptor, or nothing is known of it.
const NOTHING: Shown = [""; 3];
const LISTENER: Shown = ["shm", "listener", "listen"];
const QUIET: Shown = ["tcp", "quiet", "established"];
const PEER_STAYS: Shown = ["tcp", "peer-stays", "established"];

/// What tests/programs/reasons.py is to do, its rules, and what is shown of its listener, of the connecting and of
/// the accepting end.
const CIRCUMSTANCES: [(&str, &str, [Shown; 3]); 11] = [
    ("a rule of the connector's", "connect", [LISTENER, ["tcp", "policy", "established"], QUIET]),
    // It would be told that it moves by itself.
    ("a slow connection", "connect", [LISTENER, ["tcp", "policy", "established"], QUIET]),
    (
        "a rule of the listener's",
        "listen",
        [["tcp", "policy", "listen"], PEER_STAYS, ["tcp", "policy", "established"]],
    ),
    ("peek-offset connector", "", [LISTENER, ["tcp", "unsupported-option", "established"], QUIET]),
    (
        "peek-offset listener",
        "",
        [LISTENER, PEER_STAYS, ["tcp", "unsupported-option", "established"]],
    ),
    ("no memory", "", [LISTENER, ["tcp", "out-of-memory", "established"], QUIET]),
    ("no descriptor", "", [LISTENER, PEER_STAYS, ["tcp", "out-of-memory", "established"]]),
    (
        "unseen use",
        "",
        [LISTENER, ["tcp", "unseen-use", "established"], ["tcp", "peer-returned", "established"]],
    ),
    ("inherited", "", [LISTENER, ["tcp", "handed-over", "established"], QUIET]),
    // The kernel has not connected it.
    ("full backlog", "", [LISTENER, NOTHING, NOTHING]),
    ("reset", "", [LISTENER, ["shm", "on-san", "failed"], NOTHING]),
];

#[test]
fn each_circumstance_has_its_reason_and_state() {
    for (what, role, expected) in CIRCUMSTANCES {
        expect_in(what, role, expected);
    }
}

/// The acceptor's end says the same of it as the connector's does of another user's server.
#[test]
fn a_connector_of_another_user_is_not_taken_for_a_native_one() {
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } == 0 {
        let accepting = ["tcp", "other-user", "established"];
        expect_in("connector of another user", "", [LISTENER, NOTHING, accepting]);
    }
}

fn expect_in(what: &str, role: &str, expected: [Shown; 3]) {
    let sandbox = Sandbox::new();
    let rules = sandbox.file("rules.toml");
    let rule = format!("[[rule]]\nrole = \"{role}\"\nsan = false\n");
    fs::write(&rules, if role.is_empty() { "" } else { &rule }).expect("the rules");
    let mut command = Mode::Shim.command(locate::python());
    command.arg(locate::helper("reasons.py")).arg(what).env("SANSHIM_CONFIG", rules);
    let program = sandbox.launch("reasons", command);
    let ends = program.wait_for_line("ends ");
    let ends = ends.split_whitespace().map(|fd| fd.parse::<i64>().expect("a number"));
    let entries = process(program.pid())["connections"].clone();
    let shown = |fd| {
        let entry = entries.as_array()?.iter().find(|entry| entry["fd"] == fd)?;
        Some(["provider", "reason", "state"].map(|name| entry[name].as_str().expect("text")))
    };
    let shown: Vec<_> = ends.map(|fd| shown(fd).unwrap_or(NOTHING)).collect();
    assert_eq!(shown, expected, "{what}: {entries}");
    program.finish();
}

/// Its connections go to the SAN when users' do, not at once.
fn launch_as_users(sandbox: &Sandbox, helper: &str) -> Running {
    let mut command = Mode::Shim.command(locate::python());
    command.arg(locate::helper(helper)).env("SANSHIM_MOVE_AFTER", "32");
    sandbox.launch(helper, command)
}

#[test]
fn a_fork_child_is_shown_whose_connection_is_never_busy() {
    let sandbox = Sandbox::new();
    let program = launch_as_users(&sandbox, "quiet_child.py");
    let child = program.wait_for_line("child ").trim().parse().expect("a number");
    let entries = process(child)["connections"].clone();
    let reasons: Vec<_> =
        entries.as_array().expect("a list").iter().map(|one| &one["reason"]).collect();
    assert!(reasons.iter().any(|reason| *reason == "quiet"), "{entries}");
    program.finish();
}

/// It publishes nothing, but it is under the shim.
#[test]
fn a_fork_child_without_traffic_is_not_taken_for_a_native_one() {
    let sandbox = Sandbox::new();
    let program = launch_as_users(&sandbox, "silent_child.py");
    let ends = program.wait_for_line("ends ");
    let [fd, child] = <[_; 2]>::try_from(ends.split_whitespace().collect::<Vec<_>>()).expect("two");
    let sanctl = locate::sanctl();
    let sanctl = sanctl.to_str().expect("a path in UTF-8");
    let why = |arguments: &[&str]| sandbox.run(Mode::Native, sanctl, arguments.iter().copied());
    let parent = program.pid().to_string();
    let of_connection = why(&["why", &parent, fd]);
    let expected = format!("(pid {child})");
    assert!(of_connection.contains(&expected), "{of_connection}");
    assert!(of_connection.contains("has the shim and publishes nothing"), "{of_connection}");
    let of_child = why(&["why", child]);
    assert!(of_child.contains("a fork child none of whose connections was busy"), "{of_child}");
    let status = why(&["status", "--pid", child]);
    assert!(status.contains(&format!("sanctl why {child}")), "{status}");
    program.finish();
}

/// One end is ready before the other, and finds nobody at first.
#[test]
fn a_peer_that_is_ready_a_moment_later_is_not_taken_for_a_native_one() {
    let sandbox = Sandbox::new();
    let mut command = Mode::Shim.command(locate::python());
    command.arg(locate::helper("late_peer.py")).env("SANSHIM_MOVE_AFTER", "32");
    command.env("SANSHIM_LOG", "info").env("SANSHIM_LOG_FILE", sandbox.file("log"));
    let program = sandbox.launch("late_peer.py", command);
    program.wait_for_line("moved");
    let past = sanctl(&["trace", "--past", "--once", &program.pid().to_string()]);
    let past = String::from_utf8(past.stdout).expect("text");
    assert!(past.contains("is on the SAN"), "{past}");
    assert!(past.contains("waits until its other end is ready to move, too"), "{past}");
    assert!(!past.contains("found no program under the shim"), "{past}");
    let log = fs::read_to_string(sandbox.file("log")).expect("the log");
    assert!(log.contains("reason=on-san") && !log.contains("reason=peer-native"), "{log}");
    program.finish();
}

/// The state of a process: "T" where it is stopped.
fn kernels_state(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    // The name, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    fields[..1].to_owned()
}

#[test]
fn a_stopped_process_is_shown_as_it_is() {
    let mut exchanges = Exchanges::start(1);
    exchanges.ask("exchange 10 100 1000");
    let pid = exchanges.program.pid();
    let running = exchanges.process();
    exchanges.program.signal(libc::SIGSTOP);
    let is_stopped = || kernels_state(pid) == "T";
    eventually(|| is_stopped().then_some(()), || "never stopped".to_owned());
    // One that waited for the process would hang, which is found out there.
    let sandbox = Sandbox::new();
    let sanctl = locate::sanctl();
    let sanctl = sanctl.to_str().expect("a path in UTF-8");
    let text = sandbox.run(Mode::Native, sanctl, ["status", "--json", "--pid", &pid.to_string()]);
    let status: Value = serde_json::from_str(&text).expect("JSON");
    assert!(is_stopped());
    assert_eq!(status["processes"][0], running);
    assert_eq!(running["connections"].as_array().map(Vec::len), Some(3), "{running}");
    exchanges.program.signal(libc::SIGCONT);
    exchanges.ask("exchange 1 100 1000");
    assert_eq!(exchanges.bytes(0)[0], [1100, 11_000]);
}
