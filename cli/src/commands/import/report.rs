//! What an import keeps, changes and leaves out.
//!
//! Invariant: a text of a package is short and has no control characters; the number of lines is
//! bounded, and the last one says how many more there are.
//! Failure: none.

use super::shown;
use crate::table;

/// Most lines.
const LINES: usize = 100;

/// What becomes of a part of the package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Kept,
    Changed,
    LeftOut,
    /// Of no part, and to know.
    Note,
}

impl Fate {
    const fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Changed => "changed",
            Self::LeftOut => "left out",
            Self::Note => "note",
        }
    }
}

/// All lines.
#[derive(Debug, Default)]
pub(super) struct Report {
    lines: Vec<[String; 3]>,
    more: usize,
}

impl Report {
    /// Adds a line; `part` may be a text of the package, `text` is ours.
    pub(super) fn add(&mut self, fate: Fate, part: &str, text: impl Into<String>) {
        if self.lines.len() == LINES {
            self.more += 1;
            return;
        }
        self.lines
            .push([fate.word().to_owned(), shown(part), text.into()]);
    }

    pub(super) fn render(&self) -> String {
        let text = table::render(["RESULT", "PART", "DETAIL"], &self.lines);
        if self.more > 0 {
            return format!("{text}and {} more\n", self.more);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_can_neither_steer_the_terminal_nor_fill_it() {
        let mut report = Report::default();
        report.add(Fate::LeftOut, "a\u{1b}[2J\nb", "it is not supported");
        for _ in 0..LINES + 4 {
            report.add(Fate::Note, &"x".repeat(5000), "y");
        }
        let text = report.render();
        assert!(text.lines().count() == LINES + 2 && text.len() < 20_000);
        assert!(text.contains("left out  a\u{fffd}[2J\u{fffd}b"), "{text}");
        assert!(text.ends_with("and 5 more\n"), "{text}");
    }
}
