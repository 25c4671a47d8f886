//! Texts of plugins and names from files, made safe to store.
//!
//! Invariant: an excerpt is one line without control characters, of bounded length; a name that
//! passed is a plain file name and a plain part of an environment variable.
//! Failure: none; what does not fit is cut, what is not allowed is refused with `false`.

/// The text of `bytes` as one line of at most `max` characters.
pub(crate) fn excerpt(bytes: &[u8], max: usize) -> String {
    // Four bytes are the longest character, so nothing beyond can matter.
    let head = bytes.get(..max.saturating_mul(4)).unwrap_or(bytes);
    let text = String::from_utf8_lossy(head);
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|w| !w.is_empty())
        .collect();
    let line = words.join(" ");
    match line.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// The specification's rule for network names and container ids, with a length that keeps the name
/// of a cache file within what file systems allow.
pub(crate) fn is_name(text: &str) -> bool {
    const MAX: usize = 100;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    text.len() <= MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(allowed)
}

/// Whether `text` names a file in a directory and nothing else.
pub(crate) fn is_file_name(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && text.len() <= 255 && !text.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::{excerpt, is_file_name, is_name};

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(
            excerpt(b"one\n\ttwo\x1b[31m \xff", 80),
            "one two [31m \u{fffd}"
        );
        assert_eq!(excerpt("äöü".as_bytes(), 2), "äö…");
        assert_eq!(excerpt(&vec![b'x'; 1 << 20], 10).chars().count(), 11);
    }

    #[test]
    fn names_cannot_leave_their_place() {
        assert!(is_name("kube-net_1.0"));
        for bad in ["", "-a", ".a", "a/b", "a b", "ä", &"x".repeat(101)] {
            assert!(!is_name(bad), "{bad}");
        }
        assert!(is_file_name("host-local"));
        for bad in ["", ".", "..", "../sh", "a/b", "a\0b"] {
            assert!(!is_file_name(bad), "{bad}");
        }
    }
}
