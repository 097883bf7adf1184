//! Bars for what takes long, on standard error and only for a person who watches it.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// How far something is, or nothing where nobody watches.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// For so many of something. Reports as JSON are for programs: nobody watches these.
    pub(crate) fn new(count: u64, what: &str, is_for_program: bool) -> Progress {
        if count == 0 || is_for_program || !io::stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(count);
        let template = format!("{{bar:40}} {{human_pos}} of {{human_len}} {what}, {{eta}} left");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// So many are done.
    pub(crate) fn done(&self, count: u64) {
        self.0.set_position(count);
    }

    /// So many are left; there may be more than were counted at first.
    pub(crate) fn left(&self, count: u64) {
        let len = self.0.length().unwrap_or(0);
        if count > len {
            self.0.set_length(count);
        }
        self.done(len.saturating_sub(count));
    }

    /// Does something that prints, without the bar.
    pub(crate) fn aside<T>(&self, what: impl FnOnce() -> T) -> T {
        self.0.suspend(what)
    }

    pub(crate) fn is_hidden(&self) -> bool {
        self.0.is_hidden()
    }

    /// It is over, or does not matter any more.
    pub(crate) fn clear(&self) {
        if !self.0.is_finished() {
            self.0.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
