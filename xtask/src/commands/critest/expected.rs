//! The table of expected results, and what differs from it.
//!
//! Invariant: a specification stands in the table once; each line has a known outcome.
//! Failure: the number of the line that makes no sense.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, ensure};

/// How a specification ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It held.
    Pass,
    /// It did not.
    Fail,
    /// It was not tried.
    Skip,
}

/// Full texts of specifications and how each must end.
#[derive(Debug)]
pub(crate) struct Expected {
    outcomes: BTreeMap<String, Outcome>,
}

impl Outcome {
    /// From ginkgo's term for it.
    pub(crate) fn of_state(state: &str) -> Self {
        match state {
            "passed" => Self::Pass,
            "skipped" | "pending" => Self::Skip,
            _ => Self::Fail,
        }
    }

    fn of_word(word: &str) -> Option<Self> {
        match word {
            "pass" => Some(Self::Pass),
            "fail" => Some(Self::Fail),
            "skip" => Some(Self::Skip),
            _ => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip => "skip",
        })
    }
}

impl Expected {
    /// Reads the table; lines that begin with # are remarks.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut outcomes = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            let parsed = line
                .split_once('\t')
                .and_then(|(spec, word)| Some((spec, Outcome::of_word(word)?)));
            let (spec, outcome) = parsed.with_context(|| {
                format!(
                    "line {}: not a text, a tab, and pass, fail or skip",
                    number + 1
                )
            })?;
            let known = outcomes.insert(spec.to_owned(), outcome);
            ensure!(known.is_none(), "line {}: a second time", number + 1);
        }
        Ok(Self { outcomes })
    }

    /// Leaves only specifications whose text contains `part`.
    pub(crate) fn only(mut self, part: Option<&str>) -> Self {
        if let Some(part) = part {
            self.outcomes.retain(|spec, _| spec.contains(part));
        }
        self
    }

    /// The number of specifications.
    pub(crate) fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// The expression that selects exactly these; ginkgo puts the name of the suite in front of a
    /// text.
    pub(crate) fn focus(&self) -> String {
        let specs: Vec<String> = self.outcomes.keys().map(|spec| quote(spec)).collect();
        format!(" ({})$", specs.join("|"))
    }

    /// One sentence for each specification that did not end as expected.
    pub(crate) fn compare(&self, found: &[(String, Outcome, String)]) -> Vec<String> {
        let mut differences = Vec::new();
        for (spec, wanted) in &self.outcomes {
            match found.iter().find(|(text, ..)| text == spec) {
                None => differences.push(format!("unknown to this critest: {spec}")),
                Some((_, outcome, _)) if outcome == wanted => {}
                Some((_, Outcome::Pass, _)) => {
                    differences.push(format!("passes now, expected {wanted}: {spec}"));
                }
                Some((_, outcome, reason)) => {
                    let reason = reason.lines().take(3).collect::<Vec<_>>().join(" ");
                    differences.push(format!("{outcome}, expected {wanted}: {spec}: {reason}"));
                }
            }
        }
        differences
    }
}

/// Go's regular expressions, escaped.
fn quote(text: &str) -> String {
    let special = |character| r"\.+*?()|[]{}^$".contains(character);
    text.chars()
        .flat_map(|c| special(c).then_some('\\').into_iter().chain([c]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(spec: &str, outcome: Outcome) -> (String, Outcome, String) {
        (spec.to_owned(), outcome, "reason".to_owned())
    }

    #[test]
    fn regressions_new_passes_and_lost_specifications_are_reported() {
        let expected =
            Expected::parse("# remark\na\tpass\nb\tpass\nc\tfail\nd\tskip\ne\tfail\n").unwrap();
        let differences = expected.compare(&[
            found("a", Outcome::Pass),
            found("b", Outcome::Fail),
            found("c", Outcome::Pass),
            found("e", Outcome::Fail),
        ]);
        assert_eq!(
            differences,
            [
                "fail, expected pass: b: reason",
                "passes now, expected fail: c",
                "unknown to this critest: d"
            ]
        );
    }

    #[test]
    fn a_bad_table_is_refused_with_the_line() {
        for (text, line) in [
            ("a\tperhaps\n", "line 1"),
            ("a\tpass\nb\n", "line 2"),
            ("a\tpass\na\tfail\n", "line 2"),
        ] {
            let error = Expected::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(line), "{error}");
        }
    }

    #[test]
    fn the_focus_selects_the_texts_literally() {
        let expected = Expected::parse("[k8s.io] a (b)\tpass\nc\tfail\n").unwrap();
        assert_eq!(expected.focus(), r" (\[k8s\.io\] a \(b\)|c)$");
        assert_eq!(expected.only(Some("c")).focus(), " (c)$");
    }

    #[test]
    fn the_table_in_the_repository_is_sound() {
        let path = crate::workspace::root().join("tests/critest/expected.tsv");
        assert!(
            Expected::parse(&std::fs::read_to_string(path).unwrap())
                .unwrap()
                .len()
                > 20
        );
    }
}
