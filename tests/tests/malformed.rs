//! A message that no honest peer sends ends its connection, and nothing else, and the log says why.

use std::fs;

use sanshim_tests::programs::{locate, status, Mode, Sandbox};

/// Which word of the header is changed, which of its bits stay, which are set, and what the log says.
const CHANGES: [(&str, &str, &str, &str); 6] = [
    ("1", "0", "1000", "it says message 1000 is the last it received"),
    ("2", "0xff00ffff", "0xc80000", "message kind 200 is unknown"),
    ("2", "0x00ffffff", "0x7000000", "flags 0x07 of a Data message are unknown"),
    ("2", "0xffff0000", "17", "17 posted receives, it has only 16 buffers"),
    ("3", "0", "1048576", "a Data message of 1048576 bytes, at most 1520 are allowed"),
    ("3", "0", "0", "a data message without data"),
];

#[test]
fn a_malformed_message_ends_its_connection_and_the_log_says_why() {
    for (word, kept, set, why) in CHANGES {
        let sandbox = Sandbox::new();
        let mut command = Mode::Shim.command(locate::python());
        command.arg(locate::helper("malformed.py")).args([word, kept, set]);
        command.env("SANSHIM_LOG", "error").env("SANSHIM_LOG_FILE", sandbox.log());
        let program = sandbox.launch("malformed", command);
        program.wait_for_line("ok");
        let fd: i64 = program.wait_for_line("reset ").parse().expect("a descriptor");
        let log = fs::read_to_string(sandbox.log()).expect("the log");
        // Whoever finds it may not know the descriptor: the second line is of who does.
        let reason = "a peer broke the protocol, its connection ends: ";
        let reset = format!("fd {fd}: connection reset, the peer broke the protocol: ");
        let lines: Vec<_> = log.lines().collect();
        let [first, second] = lines[..] else { panic!("{why}: {log}") };
        assert!(first.contains(reason) && first.contains(why), "{why}: {log}");
        assert!(second.contains(&reset), "{why}: {log}");
        let connections = status::connections(&[program.pid()]);
        let shown = connections.iter().find(|connection| connection.fd == fd);
        assert_eq!(shown.map(|one| one.state.as_str()), Some("failed"), "{connections:?}");
        program.finish();
    }
}
