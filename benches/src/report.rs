//! The JSON line of a run.

use crate::options::{Options, WaitKind};
use crate::stats::Summary;
use serde_json::{json, Map, Value};
use std::time::Duration;

/// Which side of the comparison a line belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject {
    /// Bare shared memory.
    Floor,
    /// A socket. This program cannot say whether it was on the SAN.
    Socket,
}

fn head(subject: Subject, options: &Options) -> Map<String, Value> {
    let mut line = Map::new();
    let subject = match subject {
        Subject::Floor => "floor",
        Subject::Socket => "socket",
    };
    line.insert("subject".into(), subject.into());
    line.insert("case".into(), options.case.name().into());
    line.insert("size".into(), options.size.into());
    line.insert(
        "wait".into(),
        if options.wait == WaitKind::Epoll { "epoll" } else { "blocking" }.into(),
    );
    line.insert("placement".into(), options.placement.name().into());
    line
}

fn print(mut line: Map<String, Value>, figures: Value) {
    if let Value::Object(figures) = figures {
        line.extend(figures);
    }
    println!("{}", Value::Object(line));
}

/// Prints the figures of a repeated exchange, which is a round trip or a connection.
pub(crate) fn latency(subject: Subject, options: &Options, summary: &Summary) {
    print(
        head(subject, options),
        json!({
            "count": summary.count,
            "typical_ns": summary.typical,
            "mean_ns": summary.mean,
            "p50_ns": summary.p50,
            "p99_ns": summary.p99,
            "rate_per_s": 1e9 / summary.mean,
        }),
    );
}

/// Prints the figures of a flow in one direction. `elapsed` ends when the receiver has confirmed the last message.
/// `segment_kib` is how much both ends touched of the connection's memory, if there is any.
pub(crate) fn flow(
    subject: Subject,
    options: &Options,
    messages: u64,
    elapsed: Duration,
    segment_kib: Option<i64>,
) {
    let seconds = elapsed.as_secs_f64();
    let bytes = messages as f64 * options.size as f64;
    print(
        head(subject, options),
        json!({
            "count": messages,
            "mean_ns": seconds * 1e9 / messages as f64,
            "rate_per_s": messages as f64 / seconds,
            "gb_per_s": bytes / seconds / 1e9,
            "segment_kib": segment_kib,
        }),
    );
}

/// Prints any other figures.
pub(crate) fn other(subject: Subject, options: &Options, figures: Value) {
    print(head(subject, options), figures);
}
