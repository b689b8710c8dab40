//! `sanbench` as a program: every case gives one line of plausible figures, natively.

use serde_json::Value;
use std::process::{Command, Output};

fn sanbench(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sanbench"))
        .args(arguments.split_whitespace())
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap()
}

/// The result of a run. Nothing is pinned, so that the test's own affinity does not matter.
fn figures(arguments: &str) -> Value {
    let output = sanbench(&format!("{arguments} --placement free"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {} {errors}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn round_trips_are_counted_and_timed() {
    for run in [
        "floor round-trip",
        "socket round-trip",
        "socket round-trip --wait epoll",
        "socket shared",
        "socket turns",
    ] {
        for size in [1, 64, 65536] {
            let line = figures(&format!("{run} --size {size} --count 200"));
            assert!(line["count"].as_u64() >= Some(200), "{line}");
            assert_eq!(line["size"], size);
            let times = ["typical_ns", "mean_ns", "p50_ns", "p99_ns"];
            assert!(times.iter().all(|time| line[time].as_f64() > Some(0.0)), "{line}");
        }
    }
}

/// The program itself compares the bytes received with the bytes sent.
#[test]
fn flows_arrive_whole() {
    for run in ["floor one-way", "floor stream", "socket one-way", "socket stream --wait epoll"] {
        for size in [8, 4097, 1 << 20] {
            let line = figures(&format!("{run} --size {size} --count 300 --ring 65536"));
            assert!(line["count"].as_u64() >= Some(300), "{line}");
            assert!(line["gb_per_s"].as_f64() > Some(0.0), "{line}");
            assert_eq!(line["segment_kib"].is_number(), run.starts_with("socket"), "{line}");
        }
    }
}

#[test]
fn connections_are_made_one_after_the_other_and_at_once() {
    for run in ["floor setup", "socket setup", "socket setup --connections 20"] {
        let line = figures(&format!("{run} --size 1 --count 40"));
        assert!(line["count"].as_u64() >= Some(40), "{line}");
        assert!(line["rate_per_s"].as_f64() > Some(0.0), "{line}");
    }
}

#[test]
fn an_idle_run_reports_both_ends() {
    let line = figures("socket idle --connections 20 --seconds 0.05");
    assert_eq!(line["connections"], 20);
    for name in ["server_cpu_ms", "server_wakeups", "client_cpu_ms", "segment_kib_each"] {
        assert!(line[name].is_number(), "{name}: {line}");
    }
}

#[test]
fn paced_requests_keep_to_their_rate() {
    let line = figures("socket paced --connections 3 --rate 500 --seconds 0.2");
    assert_eq!(line["count"], 100, "{line}");
    assert!(line["rate_per_s"].as_f64() <= Some(600.0), "{line}");
    for name in ["p50_ns", "p99_ns", "server_cpu_ms", "client_cpu_ms"] {
        assert!(line[name].as_f64() > Some(0.0), "{name}: {line}");
    }
}

#[test]
fn what_cannot_be_done_has_a_status_and_a_remedy() {
    for arguments in ["floor idle", "socket one-copy", "socket round-trip --library /none"] {
        let output = sanbench(arguments);
        assert!(!output.status.success(), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
        assert!(!output.stderr.is_empty(), "{arguments}");
    }
    assert_eq!(sanbench("floor nothing").status.code(), Some(64));
}
