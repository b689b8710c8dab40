//! `sanctl top --once`: the rates of one interval, as text or as JSON.

use super::columns::{Column, CONNECTIONS, PROCESSES};
use super::rates::Sampler;
use super::view::{ShownRows, View};
use crate::output::{print, printable_json};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Looks twice, and prints.
pub(super) fn show(view: &View, interval: Duration, as_json: bool) -> i32 {
    let mut sampler = Sampler::default();
    let started = Instant::now();
    sampler.take(&super::look(&view.filter), started);
    std::thread::sleep(interval);
    let now = Instant::now();
    let shown = view.arrange(&sampler.take(&super::look(&view.filter), now));
    print(&match shown {
        ShownRows::Connections(rows) if as_json => json("connections", &rows, now - started),
        ShownRows::Processes(rows) if as_json => json("processes", &rows, now - started),
        ShownRows::Connections(rows) => table(CONNECTIONS, &rows),
        ShownRows::Processes(rows) => table(PROCESSES, &rows),
    })
}

fn json<Of: Serialize>(name: &str, rows: &[Of], interval: Duration) -> String {
    let object = serde_json::json!({ "seconds": interval.as_secs_f64(), name: rows });
    printable_json(&format!("{object:#}\n"))
}

/// A table with all columns, however wide the terminal is.
fn table<Of>(columns: &[Column<Of>], rows: &[Of]) -> String {
    let mut text = String::new();
    let mut push = |cells: Vec<String>| {
        let padded = columns.iter().zip(&cells).map(|(column, cell)| match column.is_number {
            true => format!("{cell:>width$}", width = column.width),
            false => format!("{cell:<width$}", width = column.width),
        });
        text.push_str(padded.collect::<Vec<_>>().join(" ").trim_end());
        text.push('\n');
    };
    push(columns.iter().map(|column| column.heading.to_owned()).collect());
    for row in rows {
        push(columns.iter().map(|column| column.cell(row)).collect());
    }
    text
}
