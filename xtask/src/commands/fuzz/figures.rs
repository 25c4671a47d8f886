//! What a run of a target did, from the lines that libFuzzer prints.
//!
//! Invariant: a target whose program failed has a crash, also when it printed nothing.
//! Failure: a figure that was not printed is 0.

use std::fmt::Write as _;

/// The figures of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) target: String,
    /// Inputs that were tried.
    pub(super) executions: u64,
    /// The same, in a second.
    pub(super) rate: u64,
    /// Inputs that are kept, since each reaches something of its own.
    pub(super) corpus: u64,
    /// Edges of the code that no input of the corpus had reached before.
    pub(super) coverage: u64,
    /// 1 when an input failed: the target ends with it.
    pub(super) crashes: u64,
}

impl Figures {
    /// Reads the log of a target.
    pub(super) fn read(target: &str, log: &str, is_well: bool) -> Self {
        let total = |name: &str| {
            let line = log.lines().rfind(|line| line.starts_with(name));
            line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
                .unwrap_or(0)
        };
        let status = |line: &str| line.starts_with('#') && line.contains(" cov: ");
        let first = log.lines().find(|line| line.contains("\tINITED "));
        let last = log.lines().rfind(|line| status(line));
        let edges = |line: Option<&str>| line.map_or(0, |line| after(line, " cov: "));
        Self {
            target: target.to_owned(),
            executions: total("stat::number_of_executed_units:"),
            rate: total("stat::average_exec_per_sec:"),
            corpus: last.map_or(0, |line| after(line, " corp: ")),
            coverage: edges(last).saturating_sub(edges(first)),
            crashes: u64::from(!is_well),
        }
    }
}

/// The number behind a word.
fn after(line: &str, word: &str) -> u64 {
    let rest = line.split_once(word).map_or("", |(_, rest)| rest);
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// All figures, for people.
pub(super) fn table(all: &[Figures]) -> String {
    let head = [
        "target",
        "executions",
        "exec/s",
        "corpus",
        "new coverage",
        "crashes",
    ];
    let mut text = format!("| {} |\n| --- |{}\n", head.join(" | "), " ---: |".repeat(5));
    for one in all {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            one.target, one.executions, one.rate, one.corpus, one.coverage, one.crashes
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "INFO: seed corpus: files: 12\n\
        #13\tINITED cov: 140 ft: 170 corp: 11/900b exec/s: 0 rss: 40Mb\n\
        #500\tNEW    cov: 150 ft: 190 corp: 14/1Kb lim: 20 exec/s: 250 rss: 41Mb L: 9/90 MS: 1 x-\n\
        #9000\tDONE   cov: 151 ft: 195 corp: 15/1Kb lim: 90 exec/s: 450 rss: 42Mb\n\
        stat::number_of_executed_units: 9000\nstat::average_exec_per_sec:     450\n";

    #[test]
    fn figures_are_read_from_the_log() {
        let expected = Figures {
            target: "x".to_owned(),
            executions: 9000,
            rate: 450,
            corpus: 15,
            coverage: 11,
            crashes: 0,
        };
        assert_eq!(Figures::read("x", LOG, true), expected);
        assert!(table(&[expected]).contains("| x | 9000 | 450 | 15 | 11 | 0 |"));
    }

    #[test]
    fn a_program_that_failed_has_a_crash() {
        let figures = Figures::read("x", "", false);
        assert_eq!((figures.crashes, figures.executions), (1, 0));
    }
}
