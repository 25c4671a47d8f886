//! The table of expected results, and what differs from it.
//!
//! Invariant: a specification stands in the table once, with a known outcome; one that does not
//! pass has a reason.
//! Failure: the number of the line that makes no sense.

use std::fmt;

use anyhow::{Result, bail, ensure};

use super::report::Spec;

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

/// One specification and how it must end.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    spec: String,
    outcome: Outcome,
}

/// Specifications in the order of the table.
#[derive(Debug)]
pub(crate) struct Expected {
    lines: Vec<Line>,
}

impl Outcome {
    /// The outcome for ginkgo's term.
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

impl Line {
    fn parse(line: &str) -> Result<Self> {
        let mut columns = line.splitn(3, '\t');
        let spec = columns.next().unwrap_or_default().to_owned();
        let Some(outcome) = columns.next().and_then(Outcome::of_word) else {
            bail!("not a text, a tab, and pass, fail or skip");
        };
        let reason = columns.next().unwrap_or_default().trim();
        if outcome == Outcome::Pass {
            ensure!(reason.is_empty(), "a reason, but it passes");
        } else {
            ensure!(!reason.is_empty(), "{outcome} without a reason");
        }
        Ok(Self { spec, outcome })
    }
}

impl Expected {
    /// Reads the table; lines that begin with # are remarks.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut lines: Vec<Line> = Vec::new();
        for (index, text) in text.lines().enumerate() {
            if text.starts_with('#') || text.trim().is_empty() {
                continue;
            }
            let number = index + 1;
            let line =
                Line::parse(text).map_err(|error| anyhow::anyhow!("line {number}: {error}"))?;
            let known = lines.iter().any(|known| known.spec == line.spec);
            ensure!(!known, "line {number}: a second time");
            lines.push(line);
        }
        Ok(Self { lines })
    }

    /// Those whose text contains `part`, and of these, unless `all`, those that must pass.
    pub(crate) fn choose(&self, part: Option<&str>, all: bool) -> Self {
        self.filtered(|line| {
            part.is_none_or(|part| line.spec.contains(part))
                && (all || line.outcome == Outcome::Pass)
        })
    }

    /// The lines by group, as `catalogue` knows it; groups and lines are in the order of the table.
    pub(crate) fn by_group(&self, catalogue: &[Spec]) -> Vec<(String, Self)> {
        let group = |line: &Line| catalogue.iter().find(|spec| spec.text == line.spec);
        let mut groups: Vec<(String, Self)> = Vec::new();
        for line in &self.lines {
            let name = group(line).map_or("", |spec| spec.group.as_str());
            match groups.iter_mut().find(|(known, _)| known == name) {
                Some((_, lines)) => lines.lines.push(line.clone()),
                None => groups.push((
                    name.to_owned(),
                    Self {
                        lines: vec![line.clone()],
                    },
                )),
            }
        }
        groups
    }

    /// The number of specifications.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether the specification is among them.
    pub(crate) fn contains(&self, spec: &str) -> bool {
        self.lines.iter().any(|line| line.spec == spec)
    }

    /// The text of each specification, with its outcome.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&str, Outcome)> {
        let lines = self.lines.iter();
        lines.map(|line| (line.spec.as_str(), line.outcome))
    }

    /// One sentence for each specification that only the table or only critest has.
    pub(crate) fn compare_names(&self, catalogue: &[Spec]) -> Vec<String> {
        let lost = self.lines.iter().filter(|line| {
            let mut texts = catalogue.iter().map(|spec| &spec.text);
            texts.all(|text| *text != line.spec)
        });
        let new = catalogue.iter().filter(|spec| !self.contains(&spec.text));
        lost.map(|line| format!("unknown to this critest: {}", line.spec))
            .chain(new.map(|spec| format!("not in the table: {}", spec.text)))
            .collect()
    }

    /// One sentence for each specification that did not end as expected.
    pub(crate) fn compare(&self, found: &[Spec]) -> Vec<String> {
        let mut differences = Vec::new();
        for Line { spec, outcome } in &self.lines {
            match found.iter().find(|found| found.text == *spec) {
                None => differences.push(format!("did not run: {spec}")),
                Some(found) if found.outcome == *outcome => {}
                Some(found) if found.outcome == Outcome::Pass => {
                    differences.push(format!("passes now, expected {outcome}: {spec}"));
                }
                Some(found) => {
                    let ended = found.outcome;
                    let reason = found.message.lines().take(3).collect::<Vec<_>>();
                    let reason = reason.join(" ");
                    differences.push(format!("{ended}, expected {outcome}: {spec}: {reason}"));
                }
            }
        }
        differences
    }

    fn filtered(&self, wanted: impl Fn(&Line) -> bool) -> Self {
        let lines = self.lines.iter().filter(|line| wanted(line));
        Self {
            lines: lines.cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests;
