//! `test`: runs the whole test suite, or some tests by name.
//!
//! Invariant: the exit code is 0 only if all that ran passed.
//! Failure: the last line states how many tests passed and failed; see `suite` for the rest.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::Result;

use crate::suite::{self, Order, Part, Selection};

/// Runs all tests, tests by name, or a part with --only.
#[derive(Debug, clap::Args)]
pub(crate) struct Test {
    /// Only tests whose name contains one of these strings, such as `stacks::exec` or `clusters`.
    names: Vec<String>,
    /// Only this part; may be repeated.
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Number of times to run the tests; if greater than 1, failed tests are not retried.
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::MIN)]
    repeat: NonZeroUsize,
    /// Number of processes that load the CPU during the tests.
    #[arg(long, value_name = "L", default_value_t = 0)]
    load: usize,
    /// Run the long forms of tests: thirty machines with measurements, twenty minutes of chaos.
    #[arg(long)]
    long: bool,
    /// Leave the stacks and clusters of the tests running, and print how to use and to remove them.
    #[arg(long, requires = "names", conflicts_with = "repeat")]
    keep: bool,
    /// Only tests that the changes since a commit can affect, those that are not committed included.
    #[arg(long, value_name = "REF", num_args = 0..=1, default_missing_value = "HEAD")]
    #[arg(conflicts_with_all = ["names", "only"])]
    changed: Option<String>,
    /// Only print the names of the parts, or what --changed chooses.
    #[arg(long)]
    list: bool,
}

impl Test {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let selection = self.selection()?;
        let mut parts = Part::all().to_vec();
        parts.retain(|part| self.only.is_empty() || self.only.contains(part));
        if let Some(selection) = &selection {
            println!("{selection}");
            if self.list || selection.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
            parts = selection.parts();
        } else if self.list {
            Part::all().iter().for_each(|part| println!("{part}"));
            return Ok(ExitCode::SUCCESS);
        }
        suite::run(&Order {
            parts,
            names: self.names.clone(),
            selection: selection.filter(|selection| !selection.is_everything()),
            repeat: self.repeat.get(),
            load: self.load,
            long: self.long,
            keep: self.keep,
        })
    }

    fn selection(&self) -> Result<Option<Selection>> {
        let reference = self.changed.as_deref();
        reference.map(Selection::since).transpose()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        test: Test,
    }

    #[test]
    fn only_named_tests_keep_their_stacks() {
        let parse = |words: &[&str]| Line::try_parse_from([&["test"], words].concat());
        assert!(parse(&["stacks::exec", "--keep"]).unwrap().test.keep);
        assert!(parse(&["--keep"]).is_err());
        assert!(parse(&["stacks::exec", "--keep", "--repeat", "2"]).is_err());
        assert!(!parse(&["stacks::exec"]).unwrap().test.keep);
    }
}
