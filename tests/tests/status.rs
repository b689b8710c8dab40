//! `sanctl status` of a program that streams: RDMA, its modes, and the sizes of buffers.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use sanshim_tests::programs::{eventually, locate, Mode, Sandbox};
use serde_json::Value;

/// What it sends at a time.
const MEGABYTE: u64 = 1 << 20;

/// tests/programs/stream.py under the shim.
struct Streaming {
    program: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pid: u64,
    sender: u64,
    receiver: u64,
    /// Bytes that were sent over the SAN before, to come there.
    before: u64,
    _sandbox: Sandbox,
}

impl Streaming {
    fn start(config: &str) -> Streaming {
        Streaming::start_with(config, &[])
    }

    fn start_with(config: &str, arguments: &[&str]) -> Streaming {
        let sandbox = Sandbox::new();
        let rules = sandbox.file("rules.toml");
        fs::write(&rules, config).expect("write");
        let mut command = Mode::Shim.command("python3");
        command.arg(locate::helper("stream.py")).args(arguments).env("SANSHIM_CONFIG", rules);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        sanshim_tests::without_access_to_all(&mut command);
        let mut program = command.spawn().expect("sanctl runs");
        let input = program.stdin.take();
        let mut output = BufReader::new(program.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("its descriptors");
        let numbers = line.split_whitespace().map(|number| number.parse().expect("a number"));
        let numbers: Vec<u64> = numbers.collect();
        let [pid, sender, receiver] = numbers[..] else { panic!("three numbers: {line:?}") };
        let _sandbox = sandbox;
        let mut streaming =
            Streaming { program, input, output, pid, sender, receiver, before: 0, _sandbox };
        streaming.before = streaming.bytes()[0];
        assert!(streaming.before < 100, "{}", streaming.ends()[0]);
        streaming
    }

    fn send(&mut self) {
        self.ask("go\n");
    }

    fn ask(&mut self, what: &str) {
        self.input.as_mut().expect("a pipe").write_all(what.as_bytes()).expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        assert_eq!(line, "done\n");
    }

    fn status(&self, options: &[&str]) -> String {
        let mut command = Command::new(locate::sanctl());
        command.args(["status", "--pid", &self.pid.to_string()]).args(options);
        let output = command.output().expect("sanctl runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Bytes that were sent since, and received of them.
    fn bytes(&self) -> [u64; 2] {
        let [sender, receiver] = self.ends();
        [&sender["sent"], &receiver["received"]]
            .map(|way| way["bytes"].as_u64().expect("a number") - self.before)
    }

    /// KiB of segments that the program has touched.
    fn touched(&self) -> u64 {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", self.pid)).expect("it lives");
        let (mut segment, mut sum) = (false, 0);
        for line in maps.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["Pss:", number, _] if segment => sum += number.parse::<u64>().expect("a number"),
                [field, ..] if field.ends_with(':') => {}
                _ => segment = line.contains("/memfd:"),
            }
        }
        sum
    }

    /// What sanctl says of the sending and of the receiving end.
    fn ends(&self) -> [Value; 2] {
        let status: Value = serde_json::from_str(&self.status(&["--json"])).expect("JSON");
        let connections = status["processes"][0]["connections"].as_array();
        let connections =
            connections.unwrap_or_else(|| panic!("nothing of {}: {status}", self.pid));
        [self.sender, self.receiver].map(|fd| {
            let end = connections.iter().find(|connection| connection["fd"] == fd);
            let end = end.unwrap_or_else(|| panic!("no descriptor {fd} in {status}")).clone();
            assert_eq!(end["provider"], "shm", "{end}");
            end
        })
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.program.wait();
    }
}

#[test]
fn status_shows_what_rdma_carries_and_the_mode_it_is_in() {
    let mut streaming = Streaming::start(
        "[shm]\nrdma_threshold = 4096\nrdma_operations = \"both\"\nsend_buffer = 131072\n",
    );
    for end in streaming.ends() {
        let (rdma, buffers) = (&end["rdma"], &end["buffers"]);
        assert_eq!((&rdma["mode"], &rdma["threshold"]), (&"discovery".into(), &4096.into()));
        assert_eq!((&rdma["sent_bytes"], &rdma["received_bytes"]), (&0.into(), &0.into()));
        assert_eq!(buffers["message_size"], 1536);
        assert_eq!(buffers["send_buffer"], 131_072);
    }
    // A receiver that gets no processor gets messages (A4), so one send may not be enough.
    let number = |value: &Value| value.as_u64().expect("a number");
    let mut sends = 0;
    let (sender, receiver) = loop {
        streaming.send();
        sends += 1;
        let [sender, receiver] = streaming.ends();
        let behaviours = sender["rdma"]["behaviours"].as_object().expect("an object");
        let seen: u64 = behaviours.values().map(number).sum();
        if seen > 0 && number(&sender["rdma"]["sent_bytes"]) > 0 {
            break (sender, receiver);
        }
        assert!(sends < 200, "never RDMA: {sender}");
    };
    let by_rdma = number(&sender["rdma"]["sent_bytes"]);
    assert!(by_rdma <= sends << 20, "{sender}");
    assert_eq!(streaming.bytes(), [sends << 20; 2], "{sender}");
    assert_eq!(number(&receiver["rdma"]["received_bytes"]), by_rdma);
    assert_eq!(number(&receiver["rdma"]["sent_bytes"]), 0);
    let table = streaming.status(&["--verbose"]);
    let other = format!(
        "received 0 ({} otherwise), from 4.0K on\n      mode: ",
        sender["received"]["bytes"]
    );
    assert!(table.contains(&other), "{table}");
    assert!(!streaming.status(&[]).contains("mode: "));
}

#[test]
fn a11_advertisements_are_counted_where_there_is_only_rdma_write() {
    let config = "[shm]\nrdma_threshold = 4096\nrdma_operations = \"write\"\n";
    let mut streaming = Streaming::start(config);
    let mut sends = 0;
    let sender = loop {
        streaming.send();
        sends += 1;
        let [sender, _] = streaming.ends();
        if sender["rdma"]["advertisements"]["used"].as_u64() > Some(0) {
            break sender;
        }
        assert!(sends < 200, "never written: {sender}");
    };
    assert!(sender["rdma"]["sent_bytes"].as_u64() > Some(0), "{sender}");
    assert!(
        streaming.status(&["-v"]).contains("advertisements: "),
        "{}",
        streaming.status(&["-v"])
    );
}

/// The sender waits until its scans find that nobody receives, and then for room.
#[test]
fn a4_a_sender_of_much_that_nobody_receives_scans_twice_and_uses_messages() {
    for operations in ["read", "write", "both"] {
        let config = format!("[shm]\nrdma_threshold = 4096\nrdma_operations = \"{operations}\"\n");
        let mut streaming = Streaming::start(&config);
        assert_eq!(streaming.ends()[0]["rdma"]["scans"], 0);
        streaming.ask("unread\n");
        let sender = eventually(
            || {
                let [sender, _] = streaming.ends();
                let scanned = sender["rdma"]["scans"].as_u64() >= Some(2);
                (scanned && sender["buffered_bytes"].as_u64() > Some(0)).then_some(sender)
            },
            || streaming.ends()[0].to_string(),
        );
        assert_eq!(sender["rdma"]["sent_bytes"], 0, "{sender}");
        streaming.ask("read\n");
        assert_eq!(streaming.bytes(), [MEGABYTE; 2]);
        streaming.send();
    }
}

#[test]
fn a9_buffers_grow_where_there_is_no_rdma_and_shrink_when_it_rests() {
    let mut streaming = Streaming::start(
        "[shm]\nrdma_threshold = \"never\"\nsend_buffer = 65536\nlargest_send_buffer = 131072\n",
    );
    let idle = streaming.touched();
    // How often the buffer is found full depends on who runs when.
    let mut sends = 0;
    let sender = loop {
        streaming.send();
        sends += 1;
        let [sender, _] = streaming.ends();
        if sender["buffers"]["send_buffer"] == 131_072 {
            break sender;
        }
        assert!(sends < 200, "never grew: {sender}");
    };
    let (rdma, buffers) = (&sender["rdma"], &sender["buffers"]);
    assert_eq!((&rdma["threshold"], &rdma["sent_bytes"]), (&Value::Null, &0.into()));
    assert!(buffers["resizes"].as_u64() >= Some(1), "{sender}");
    assert!(buffers["fragmented"].as_u64() >= Some(sends), "{sender}");
    assert!(streaming.status(&["-v"]).contains("      rdma: none\n      buffers: message "));
    let grown = streaming.touched();
    assert!(idle < 64 && grown >= idle + 128, "{idle} KiB, then {grown}");
    // Its memory is given back some time after it grew, when its sender sleeps; then it grows again.
    let mut rests = 0;
    while streaming.ends()[0]["buffers"]["send_buffer"] != 65536 {
        streaming.ask("rest\n");
        rests += 1;
        assert!(rests < 400, "never shrank: {}", streaming.ends()[0]);
    }
    let rested = streaming.touched();
    assert!(rested + 128 <= grown, "{grown} KiB, still {rested}");
    streaming.send();
}

/// Sends in pieces that would go in one larger message, and says whether the messages grew.
fn messages_grow(streaming: &mut Streaming) -> bool {
    (0..50).any(|_| {
        streaming.ask("pieces\n");
        streaming.ends()[0]["buffers"]["message_size"] != 1536
    })
}

#[test]
fn a9_where_memory_is_short_the_old_sizes_stay() {
    let config =
        "[shm]\nrdma_threshold = \"never\"\nsend_buffer = 65536\nlargest_send_buffer = 131072\n";
    let mut streaming = Streaming::start(config);
    assert!(messages_grow(&mut streaming), "{}", streaming.ends()[0]);
    let mut streaming = Streaming::start_with(config, &["short"]);
    assert!(!messages_grow(&mut streaming), "{}", streaming.ends()[0]);
    (0..50).for_each(|_| streaming.send());
    let buffers = &streaming.ends()[0]["buffers"];
    assert_eq!((&buffers["send_buffer"], &buffers["resizes"]), (&65536.into(), &0.into()));
}
