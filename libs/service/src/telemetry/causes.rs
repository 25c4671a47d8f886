//! Formats an error with all its causes on one line.
//!
//! Invariant: a line has no control characters and fits into a header.
//! Failure: none; what is too long is cut.

use std::error::Error;

/// Longest line in bytes: it may travel as a header, which clients bound.
const LONGEST: usize = 4096;

/// The error and its causes on one line. A cause that its error repeats is said once.
pub fn one_line(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let reported = cause.to_string();
        if !text.ends_with(&reported) {
            text = format!("{text}: {reported}");
        }
        source = cause.source();
    }
    bounded(&text)
}

/// Without line breaks and other control characters, and short enough for a header.
pub fn bounded(text: &str) -> String {
    let words: Vec<_> = text
        .split(|c: char| c.is_control() || c == ' ')
        .filter(|word| !word.is_empty())
        .collect();
    let mut line = words.join(" ");
    if line.len() > LONGEST {
        line.truncate(line.floor_char_boundary(LONGEST));
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_fit_into_a_header() {
        let text = bounded(&"ä".repeat(10_000));
        assert!(text.len() <= LONGEST + '…'.len_utf8());
        assert!(text.ends_with('…'));
    }
}
