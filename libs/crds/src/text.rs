//! Texts of guests and nodes, truncated to what may be stored and shown.
//!
//! Invariant: the result is printable ASCII and at most as long as requested.
//! Failure: none; what does not fit is left out.

/// At most `limit` bytes of `text`: printable ASCII without the rest, no space at the ends.
#[must_use]
pub fn printable(text: &str, limit: usize) -> String {
    let kept = text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ');
    let kept: String = kept.take(limit).collect();
    kept.trim().to_owned()
}

/// A host name, or nothing if `text` is none: at most 253 of letters, digits, `.`, `-` and `_`.
#[must_use]
pub fn host_name(text: &str) -> String {
    let fits = text.len() <= 253
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    if fits { text.to_owned() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_printed_is_left_out_and_the_rest_is_cut() {
        assert_eq!(printable(" a\u{1b}[31mb\n\u{202e}c ", 64), "a[31mbc");
        assert_eq!(printable(&"x".repeat(100), 7), "xxxxxxx");
    }

    #[test]
    fn a_host_name_with_other_characters_is_none() {
        assert_eq!(host_name("vm-1.example"), "vm-1.example");
        assert_eq!(host_name("vm 1"), "");
        assert_eq!(host_name(&"a".repeat(254)), "");
    }
}
