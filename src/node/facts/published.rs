//! Values that a guest publishes: lines `KEY=VALUE` of one small file.
//!
//! Invariant: at most [`MOST`] values of [`LARGEST`] bytes together with their keys, all of them
//! printable; a file that is larger than that publishes nothing, so that no part of a value is ever
//! published.
//! Failure: a line that is no such pair is passed over.

use std::collections::BTreeMap;

/// Where a guest writes them.
pub(super) const FILE: &str = "/run/vmlet/guestinfo";
/// Largest file, in bytes.
const LARGEST: usize = 1024;
/// What is read of it: enough to see that there is more.
pub(super) const READ: usize = LARGEST + 1;
/// Most values.
const MOST: usize = 16;

/// The values; of lines with the same key the last one counts.
pub(super) fn values(file: &[u8]) -> BTreeMap<String, String> {
    let text = match str::from_utf8(file) {
        Ok(text) if file.len() <= LARGEST => text,
        _ => return BTreeMap::new(),
    };
    let mut all = BTreeMap::new();
    for (key, value) in text.lines().filter_map(pair) {
        if all.len() < MOST || all.contains_key(key) {
            all.insert(key.to_owned(), value.to_owned());
        }
    }
    all
}

fn pair(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    let value = value.trim();
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let fits = !key.is_empty() && key.len() <= 253 && key.chars().all(is_key);
    let shown = value.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    (fits && shown).then_some((key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_with_key_and_value_are_published() {
        let file = b"app.state = up \n\nno pair\n=x\nb \
            d=1\nurl=http://a/?b=c\napp.state=down\nempty=\nbell=\x07\n";
        let reported = values(file);
        let reported: Vec<_> = reported
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(
            reported,
            [
                ("app.state", "down"),
                ("empty", ""),
                ("url", "http://a/?b=c")
            ]
        );
    }

    #[test]
    fn a_guest_that_publishes_too_much_publishes_little_or_nothing() {
        let many: String = (0..100).map(|n| format!("k{n}=v\n")).collect();
        assert_eq!(values(many.as_bytes()).len(), MOST);
        let long = format!("a=1\nb={}", "x".repeat(LARGEST));
        assert!(values(&long.as_bytes()[..READ]).is_empty());
        assert!(values(b"a=1\n\xff").is_empty());
    }
}
