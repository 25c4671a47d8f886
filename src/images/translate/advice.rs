//! What the author of a pod may have meant by a name that no rule is for.
//!
//! Invariant: bounded, whatever rules there are; it has names of rules and no URL.
//! Failure: none.

/// Most names that are listed.
const MOST: usize = 8;
/// Longest name that is listed or compared, in characters.
const LONGEST: usize = 64;
/// Most changes that make another name of one that is meant.
const SLIPS: usize = 2;

/// The names that there are, and the one that is most like `name`.
pub(super) fn suggest(name: &str, known: impl Iterator<Item = String>) -> String {
    let mut known: Vec<_> = known.map(|name| shown(&name)).collect();
    known.sort();
    known.dedup();
    if known.is_empty() {
        return "this node has no rules with names: write HOST/PATH of a registry or a web server"
            .to_owned();
    }
    let wanted = shown(name);
    let near = known.iter().map(|one| (slips(&wanted, one), one)).min();
    let near = near.filter(|(slips, one)| *slips <= SLIPS && *slips < one.chars().count());
    let more = match known.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let list = known[..known.len().min(MOST)].join(", ");
    match near {
        Some((_, near)) => {
            format!("this node has rules for {list}{more}; did you mean {near}?")
        }
        None => format!("this node has rules for {list}{more}"),
    }
}

fn shown(name: &str) -> String {
    let printable = name.chars().filter(|c| !c.is_control());
    printable.take(LONGEST).collect()
}

/// How many characters are to be added, left out or replaced to make one text of the other.
fn slips(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn said(name: &str, known: &[&str]) -> String {
        suggest(name, known.iter().map(|name| (*name).to_owned()))
    }

    #[rstest]
    #[case::left_out("helo", "this node has rules for debian, hello; did you mean hello?")]
    #[case::swapped(
        "debain",
        "this node has rules for debian, hello; did you mean debian?"
    )]
    #[case::nothing_like_it("windows-11", "this node has rules for debian, hello")]
    fn the_rules_are_listed_and_the_nearest_is_named(#[case] name: &str, #[case] expected: &str) {
        assert_eq!(said(name, &["hello", "debian", "hello"]), expected);
    }

    #[test]
    fn the_list_is_bounded() {
        let many: Vec<_> = (0..500)
            .map(|i| format!("{i:0>3}{}", "x".repeat(1000)))
            .collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let text = said(&"y".repeat(1000), &many);
        assert!(text.ends_with("and 492 more"), "{text}");
        assert!(text.len() < 700, "{text}");
        assert!(said("a", &[]).contains("HOST/PATH"));
        // A name of a letter or two is like every other.
        assert!(!said("x", &["a"]).contains("did you mean"));
    }
}
