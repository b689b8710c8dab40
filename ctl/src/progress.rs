//! How far a command has come, on the terminal, where it takes longer than a moment. Where standard error is no
//! terminal, nothing is shown.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Commands that are over sooner say nothing.
const SHOWN_AFTER: Duration = Duration::from_millis(300);

/// A line that goes when this is dropped.
pub(crate) struct ProgressLine {
    bar: ProgressBar,
    is_shown: bool,
}

impl ProgressLine {
    /// Of so many, each of which is to have done `what`.
    pub(crate) fn new(all: usize, what: &'static str) -> ProgressLine {
        let template = "{pos} of {len} {msg}, {elapsed} {bar:20}";
        let style = ProgressStyle::with_template(template);
        let bar = ProgressBar::with_draw_target(Some(all as u64), ProgressDrawTarget::hidden());
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        ProgressLine { bar, is_shown: false }
    }

    /// So many have.
    pub(crate) fn set(&mut self, done: usize) {
        if !self.is_shown && self.bar.elapsed() >= SHOWN_AFTER {
            self.is_shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done as u64);
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
