//! What is shown, and in which order. Keys change it.

use super::columns::Order;
use super::rates::{by_process, ProcessRow, Row};
use crate::cli::{TopArguments, TopLine};
use crate::filter::Filter;
use std::cmp::Reverse;

/// What the user chose.
pub(super) struct View {
    /// What is read.
    pub(super) filter: Filter,
    /// Of that only what is on TCP is shown. A key changes it, without another look.
    pub(super) not_on_san: bool,
    pub(super) order: Order,
    pub(super) by: TopLine,
}

/// Rows to show, in order.
pub(super) enum ShownRows {
    Connections(Vec<Row>),
    Processes(Vec<ProcessRow>),
}

impl ShownRows {
    pub(super) fn len(&self) -> usize {
        match self {
            ShownRows::Connections(rows) => rows.len(),
            ShownRows::Processes(rows) => rows.len(),
        }
    }
}

impl View {
    pub(super) fn new(arguments: &TopArguments) -> View {
        let not_on_san = arguments.filter.not_on_san;
        let filter = Filter { not_on_san: false, ..arguments.filter.clone() };
        View { filter, not_on_san, order: arguments.sort, by: arguments.by }
    }

    /// Those of the rows that are shown.
    pub(super) fn chosen<'a>(&self, rows: &'a [Row]) -> impl Iterator<Item = &'a Row> {
        let not_on_san = self.not_on_san;
        rows.iter().filter(move |row| !(not_on_san && row.on_san))
    }

    /// The rows in the order of this view. Equal ones stay in the order of processes and descriptors.
    pub(super) fn arrange(&self, rows: &[Row]) -> ShownRows {
        let order = self.order;
        let mut rows: Vec<_> = self.chosen(rows).cloned().collect();
        match self.by {
            TopLine::Connection => {
                rows.sort_by_key(|row| Reverse(order.key(row.pid, &row.rates)));
                ShownRows::Connections(rows)
            }
            TopLine::Process => {
                let mut rows = by_process(&rows);
                rows.sort_by_key(|row| Reverse(order.key(row.pid, &row.rates)));
                ShownRows::Processes(rows)
            }
        }
    }

    /// The next order, or the one before it.
    pub(super) fn turn_order(&mut self, forwards: bool) {
        let all = Order::ALL;
        let at = all.iter().position(|one| *one == self.order).unwrap_or(0);
        let step = if forwards { 1 } else { all.len() - 1 };
        self.order = all[(at + step) % all.len()];
    }

    pub(super) fn turn_by(&mut self) {
        self.by = match self.by {
            TopLine::Connection => TopLine::Process,
            TopLine::Process => TopLine::Connection,
        };
    }
}
