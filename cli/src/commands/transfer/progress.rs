//! How far a transfer is: a bar on a terminal, elsewhere a line for each tenth.
//!
//! Invariant: all of it goes to standard error.
//! Failure: none; what cannot be drawn is left out.

use std::cell::Cell;

use indicatif::{ProgressBar, ProgressStyle};

/// The bar.
const BAR: &str = "{msg:8} {bar:30} {percent}% {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const PREPARING: &str = "prepare  {bar:30} {percent}%";

/// Shows a transfer until it is dropped.
pub(in crate::commands) struct Progress {
    bar: ProgressBar,
    /// Tenths that were printed.
    tenths: Cell<u64>,
}

impl Progress {
    /// `verb` says what is done with the bytes.
    pub(in crate::commands) fn new(verb: &'static str) -> Self {
        Self::with(ProgressBar::new(100).with_message(verb))
    }

    #[cfg(test)]
    pub(in crate::commands) fn hidden() -> Self {
        Self::with(ProgressBar::hidden())
    }

    fn with(bar: ProgressBar) -> Self {
        let tenths = Cell::default();
        Self { bar, tenths }
    }

    /// The node makes the file.
    pub(in crate::commands) fn preparing(&self, percent: u32) {
        self.style(PREPARING);
        self.bar.set_length(100);
        self.bar.set_position(percent.into());
    }

    /// Bytes come from now on.
    pub(in crate::commands) fn begin(&self, size: u64, offset: u64) {
        self.style(BAR);
        self.bar.set_length(size);
        self.bar.set_position(offset);
        self.bar.reset_eta();
    }

    pub(in crate::commands) fn received(&self, bytes: u64) {
        self.bar.set_position(bytes);
        let size = self.bar.length().unwrap_or_default().max(1);
        let tenths = bytes.saturating_mul(10) / size;
        if self.bar.is_hidden() && tenths > self.tenths.get() {
            self.tenths.set(tenths);
            eprintln!("{:8} {}%", self.bar.message(), tenths * 10);
        }
    }

    /// Prints a sentence.
    pub(in crate::commands) fn say(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    fn style(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
