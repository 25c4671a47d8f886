//! Lists of the node's CPUs, as `0-3,7`.
//!
//! Invariant: a list that was read is sorted, without doubles and within [`MOST`].
//! Failure: `None` for text that is no list.

use std::collections::BTreeSet;

/// CPUs that a node may have; more than Linux supports.
const MOST: u32 = 8192;

/// Reads a list; an empty text is an empty list.
pub(super) fn parse(text: &str) -> Option<Vec<u32>> {
    let mut cpus = BTreeSet::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus.into_iter().collect())
}

/// Writes a list, CPU by CPU; nothing when it is empty.
pub(super) fn text(cpus: &[u32]) -> Option<String> {
    let words: Vec<_> = cpus.iter().map(u32::to_string).collect();
    (!words.is_empty()).then(|| words.join(","))
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|n| digits && *n < MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("0-2,7"), Some(vec![0, 1, 2, 7]));
        assert_eq!(parse("7,1-2,2"), Some(vec![1, 2, 7]));
        assert_eq!(parse(""), Some(Vec::new()));
        for wrong in ["a", "1-", "-1", "2-1", "1,,2", "+1", "0-4294967295", " 1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(text(&[0, 3]).as_deref(), Some("0,3"));
        assert_eq!(text(&[]), None);
    }
}
