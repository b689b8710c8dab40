//! iperf3 in every mode it has on TCP.

use crate::both;
use sanshim_tests::programs::{port, Mode, Running, Sandbox};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// What a measured client moves: the load of a second would only load the machine.
const AMOUNT: &str = "25M";

/// A server that is ready, and its port.
fn serve(sandbox: &Sandbox, mode: Mode, more: &[&str]) -> (Running, String) {
    let number = port::reserve();
    let port = number.to_string();
    let arguments = ["-s", "-p", &port, "--forceflush"];
    let mut server = sandbox.start(mode, "iperf3", arguments.iter().chain(more).copied());
    port::wait_listening(number, &mut server);
    (server, port)
}

/// Checks that the control and data connections of a client with `more` options are where they
/// should be, then gives the report of such a client that moves [`AMOUNT`].
fn measure(mode: Mode, streams: usize, more: &[&str]) -> Value {
    let sandbox = Sandbox::new();
    let (server, port) = serve(&sandbox, mode, &[]);
    // Longer than any look at it takes; it is ended before.
    let endless = ["-c", "127.0.0.1", "-p", &port, "-t", "600"];
    let client = sandbox.start(mode, "iperf3", endless.iter().chain(more).copied());
    mode.expect_shm(&client, 1 + streams);
    mode.expect_shm(&server, 1 + streams);
    drop((client, server));

    let (server, port) = serve(&sandbox, mode, &[]);
    let limited = ["-c", "127.0.0.1", "-p", &port, "-n", AMOUNT, "-J"];
    let text = sandbox.run(mode, "iperf3", limited.iter().chain(more).copied());
    let report: Value = serde_json::from_str(&text).expect("a JSON report");
    assert!(report.get("error").is_none(), "{report:#}");
    assert_eq!(report["end"]["streams"].as_array().map(Vec::len), Some(streams), "{report:#}");
    // It serves another client as before, once it is done with this one: until then it is busy.
    server.wait_for_line(&format!("Server listening on {port} (test #2)"));
    sandbox.run(mode, "iperf3", ["-c", "127.0.0.1", "-p", &port, "-n", "1M"]);
    server.assert_alive();
    report
}

fn assert_received(report: &Value, sum: &str) {
    let received = report["end"][sum]["bytes"].as_u64();
    assert!(received.is_some_and(|bytes| bytes > 1_000_000), "{sum}: {report:#}");
}

fn one_stream(mode: Mode) {
    assert_received(&measure(mode, 1, &[]), "sum_received");
}

fn four_streams(mode: Mode) {
    assert_received(&measure(mode, 4, &["-P", "4"]), "sum_received");
}

fn reverse(mode: Mode) {
    assert_received(&measure(mode, 1, &["-R"]), "sum_received");
}

fn bidirectional(mode: Mode) {
    let report = measure(mode, 2, &["--bidir"]);
    assert_received(&report, "sum_received");
    assert_received(&report, "sum_received_bidir_reverse");
}

/// sendfile() instead of write().
fn zero_copy(mode: Mode) {
    assert_received(&measure(mode, 1, &["-Z"]), "sum_received");
}

/// Small writes, a limited rate (timers beside sockets in select) and small socket buffers.
fn paced(mode: Mode) {
    let options = ["-l", "1000", "-b", "200M", "-w", "64K"];
    assert_received(&measure(mode, 1, &options), "sum_received");
}

/// The bytes of a file, through the measuring connection. The server drops what it has not read when
/// the client says on the control connection that it is done, so only a beginning must arrive.
fn file(mode: Mode) {
    let sandbox = Sandbox::new();
    let (sent, received) = (sandbox.file("sent"), sandbox.file("received"));
    let content: Vec<u8> = (0..8 << 20).map(|i: u32| (i % 251) as u8).collect();
    fs::write(&sent, &content).expect("the file to send");
    let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    let (server, port) = serve(&sandbox, mode, &["-1", "-F", &path(&received)]);
    let arguments = ["-c", "127.0.0.1", "-p", &port, "-F", &path(&sent), "-b", "400M", "-J"];
    sandbox.run(mode, "iperf3", arguments);
    server.finish();
    let got = fs::read(&received).expect("the received file");
    assert!(!got.is_empty(), "nothing arrived");
    assert!(content.starts_with(&got), "the file arrived with other bytes");
}

both! {
    one_stream: iperf3_one_stream_native, iperf3_one_stream_shim;
    four_streams: iperf3_four_streams_native, iperf3_four_streams_shim;
    reverse: iperf3_reverse_native, iperf3_reverse_shim;
    bidirectional: iperf3_bidirectional_native, iperf3_bidirectional_shim;
    zero_copy: iperf3_zero_copy_native, iperf3_zero_copy_shim;
    paced: iperf3_paced_native, iperf3_paced_shim;
    file: iperf3_file_native, iperf3_file_shim;
}
