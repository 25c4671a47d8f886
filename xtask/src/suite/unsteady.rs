//! The history of unsteady tests, `tests/unsteady.tsv`: those that passed only when they ran once more.
//!
//! Invariant: a test that was unsteady more often than its budget fails the unit tests, until its cause is
//! found and its row removed.
//! Failure: a row that cannot be parsed is an error that names it.

use std::fmt;

use anyhow::{Context, Result, ensure};

/// Where it is, below the top folder of the repository.
pub(crate) const FILE: &str = "tests/unsteady.tsv";

/// How often a test may be unsteady before its cause must be found.
const BUDGET: usize = 2;
const FIELDS: usize = 5;

/// The history; lines that are comments stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct History {
    comments: Vec<String>,
    rows: Vec<Row>,
}

/// A test and its times.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    test: String,
    date: String,
    times: usize,
    budget: usize,
    reason: String,
}

impl History {
    /// Reads the file.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut history = Self::default();
        for line in text.lines() {
            if line.starts_with('#') {
                history.comments.push(line.to_owned());
            } else {
                let row = Row::parse(line).with_context(|| format!("{FILE}: {line:?}"))?;
                history.rows.push(row);
            }
        }
        Ok(history)
    }

    /// Adds one time of a test.
    pub(crate) fn add(&mut self, test: &str, date: &str, reason: &str) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.test == test) {
            row.times += 1;
            date.clone_into(&mut row.date);
            reason.clone_into(&mut row.reason);
            return;
        }
        self.rows.push(Row {
            test: test.to_owned(),
            date: date.to_owned(),
            times: 1,
            budget: BUDGET,
            reason: reason.to_owned(),
        });
        self.rows.sort_by(|one, other| one.test.cmp(&other.test));
    }

    /// What a report says of a test that was unsteady.
    pub(super) fn remark(&self, test: &str) -> String {
        match self.rows.iter().find(|row| row.test == test) {
            None => format!("for the first time: `cargo xtask unsteady REASON` adds it to {FILE}"),
            Some(Row {
                times,
                budget,
                date,
                reason,
                ..
            }) => format!("{times} times before (budget {budget}), last on {date}: {reason}"),
        }
    }

    /// The tests that were unsteady more often than their budgets.
    #[cfg(test)]
    fn beyond_budget(&self) -> Vec<&str> {
        let rows = self.rows.iter().filter(|row| row.times > row.budget);
        rows.map(|row| row.test.as_str()).collect()
    }
}

impl Row {
    fn parse(line: &str) -> Result<Self> {
        let fields: Vec<_> = line.split('\t').collect();
        ensure!(
            fields.len() == FIELDS && fields.iter().all(|field| !field.trim().is_empty()),
            "expected test, date, times, budget and reason, with tabs between"
        );
        let is_date = |text: &str| {
            let parts: Vec<_> = text.split('-').map(str::len).collect();
            parts == [4, 2, 2] && text.chars().all(|c| c == '-' || c.is_ascii_digit())
        };
        ensure!(is_date(fields[1]), "{:?} is no date", fields[1]);
        Ok(Self {
            test: fields[0].to_owned(),
            date: fields[1].to_owned(),
            times: fields[2].parse().context("times")?,
            budget: fields[3].parse().context("budget")?,
            reason: fields[4].to_owned(),
        })
    }
}

/// The file.
impl fmt::Display for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for comment in &self.comments {
            writeln!(formatter, "{comment}")?;
        }
        for row in &self.rows {
            let Row {
                test,
                date,
                times,
                budget,
                reason,
            } = row;
            writeln!(formatter, "{test}\t{date}\t{times}\t{budget}\t{reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::suite::manifest::Manifest;
    use crate::workspace;

    #[test]
    fn times_are_counted_and_a_test_beyond_its_budget_is_found() {
        let mut history = History::parse("# a comment\n").unwrap();
        assert!(history.remark("api::b").starts_with("for the first time"));
        history.add("api::b", "2026-01-02", "etcd was late");
        history.add("api::a", "2026-01-02", "etcd was late");
        history.add("api::b", "2026-01-03", "etcd was late again");
        assert_eq!(history.beyond_budget(), Vec::<&str>::new());
        let text = history.to_string();
        assert_eq!(
            text,
            "# a comment\napi::a\t2026-01-02\t1\t2\tetcd was late\n\
             api::b\t2026-01-03\t2\t2\tetcd was late again\n"
        );
        assert_eq!(History::parse(&text).unwrap(), history);
        let remark = history.remark("api::b");
        assert_eq!(
            remark,
            "2 times before (budget 2), last on 2026-01-03: etcd was late again"
        );
        history.add("api::b", "2026-01-04", "etcd");
        assert_eq!(history.beyond_budget(), ["api::b"]);
    }

    #[test]
    fn a_bad_row_is_an_error() {
        for bad in [
            "api::b",
            "api::b\tsoon\t1\t2\tx",
            "api::b\t2026-01-02\t1\t2\t ",
        ] {
            let error = format!("{:#}", History::parse(bad).unwrap_err());
            assert!(error.contains(FILE), "{error}");
        }
    }

    /// A test that is unsteady again and again has a cause, which is to be found.
    #[test]
    fn no_test_of_the_repository_is_beyond_its_budget() {
        let read = |file| fs::read_to_string(workspace::root().join(file)).unwrap();
        let history = History::parse(&read(FILE)).unwrap();
        assert_eq!(history.beyond_budget(), Vec::<&str>::new());
        let manifest = Manifest::parse(&read(crate::suite::MANIFEST)).unwrap();
        for row in &history.rows {
            assert!(manifest.has(&row.test), "there is no test {}", row.test);
        }
    }
}
