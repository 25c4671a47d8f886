//! The list of all tests, `tests/manifest.tsv`: names of jobs, each with the number of its tests.
//!
//! Invariant: a whole run that passes has at least the tests of the list. A test that is lost, with the
//! `mod` line of its file or with its program, fails the run; all others run and are reported.
//! Failure: a row that cannot be parsed is an error that names it.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, ensure};

/// Where it is, below the top folder of the repository.
pub(crate) const FILE: &str = "tests/manifest.tsv";
/// Where a whole run puts the list of its own tests, below the build folder.
pub(super) const CURRENT: &str = "test-manifest.tsv";

const HEADER: &str =
    "# The tests of a whole run, by job: `cargo xtask manifest` writes this file.\n";

/// Jobs and the numbers of their tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest(BTreeMap<String, usize>);

impl Manifest {
    /// The jobs of a run.
    pub(super) fn new<'a>(jobs: impl Iterator<Item = (&'a str, usize)>) -> Self {
        Self(jobs.map(|(name, tests)| (name.to_owned(), tests)).collect())
    }

    /// Reads the list.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut jobs = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let read = || format!("{FILE}: {line:?} is not a name and a number with a tab between");
            let (name, tests) = line.split_once('\t').with_context(read)?;
            let tests = tests.parse().with_context(read)?;
            let before = jobs.insert(name.to_owned(), tests);
            ensure!(before.is_none(), "{FILE}: {name} has two rows");
        }
        Ok(Self(jobs))
    }

    /// Whether it has a job of this name.
    #[cfg(test)]
    pub(super) fn has(&self, job: &str) -> bool {
        self.0.contains_key(job)
    }

    /// An error unless `run` has every test of this list.
    pub(super) fn check(&self, run: &Self) -> Result<()> {
        let missing = self.0.iter().filter_map(|(job, tests)| {
            let found = run.0.get(job).copied().unwrap_or(0);
            (found < *tests).then(|| format!("\n  {job}: {found} of {tests}"))
        });
        let missing: Vec<_> = missing.collect();
        ensure!(
            missing.is_empty(),
            "tests of {FILE} are missing; restore them, or run `cargo xtask manifest` if they were \
             removed on purpose:{}",
            missing.concat()
        );
        Ok(())
    }

    /// How many tests of `run` are not in this list.
    pub(super) fn unlisted(&self, run: &Self) -> usize {
        let more = run.0.iter().map(|(job, tests)| {
            let listed = self.0.get(job).copied().unwrap_or(0);
            tests.saturating_sub(listed)
        });
        more.sum()
    }
}

/// The file.
impl fmt::Display for Manifest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(HEADER)?;
        for (job, tests) in &self.0 {
            writeln!(formatter, "{job}\t{tests}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Manifest {
        Manifest::new([("stacks::exec::a", 1), ("vmlet", 9), ("vmlet as root", 2)].into_iter())
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        assert_eq!(Manifest::parse(&listed().to_string()).unwrap(), listed());
        for bad in ["vmlet", "vmlet\tmany", "vmlet\t1\nvmlet\t2"] {
            let error = format!("{:#}", Manifest::parse(bad).unwrap_err());
            assert!(error.contains(FILE), "{error}");
        }
    }

    #[test]
    fn a_lost_test_and_a_lost_program_are_named_and_new_tests_are_counted() {
        let run = Manifest::new([("stacks::exec::a", 1), ("vmlet", 8), ("new", 3)].into_iter());
        let error = listed().check(&run).unwrap_err().to_string();
        assert!(error.contains("\n  vmlet: 8 of 9"), "{error}");
        assert!(error.contains("\n  vmlet as root: 0 of 2"), "{error}");
        assert!(!error.contains("stacks"), "{error}");
        assert_eq!(listed().unlisted(&run), 3);
        assert_eq!(listed().unlisted(&listed()), 0);
        listed().check(&listed()).unwrap();
    }

    #[test]
    fn the_list_of_the_repository_can_be_read() {
        let file = crate::workspace::root().join(FILE);
        let manifest = Manifest::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert!(manifest.0.len() > 100);
    }
}
