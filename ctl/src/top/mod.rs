//! `sanctl top`: what connections and processes do now, second after second.
//!
//! It reads what processes publish, as `sanctl status` does, and shows the difference between two looks.

mod columns;
mod once;
mod rates;
mod screen;
mod view;

pub(crate) use columns::Order;

use crate::cli::TopArguments;
use crate::filter::Filter;
use crate::output::complain;
use sanshim_core::registry::{self, Process};
use std::io::IsTerminal;
use std::time::Duration;

/// Shows rates until the user ends it, or once. Gives the exit status.
pub(crate) fn top(arguments: &TopArguments) -> i32 {
    let interval = Duration::from_secs_f64(arguments.interval);
    let view = view::View::new(arguments);
    if arguments.once {
        return once::show(&view, interval, arguments.json);
    }
    if !std::io::stdout().is_terminal() {
        complain("standard output is no terminal; use --once");
        return 1;
    }
    match screen::show(view, interval) {
        Ok(()) => 0,
        Err(error) => {
            complain(&format!("cannot use the terminal: {error}; use --once"));
            1
        }
    }
}

/// What can be read now. Of files that cannot be read only `sanctl status` tells.
fn look(filter: &Filter) -> Vec<Process> {
    let mut processes = registry::read_all().processes;
    filter.apply(&mut processes);
    processes
}
