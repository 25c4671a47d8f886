//! The tests that a change of files can affect, for `cargo xtask test --changed`.
//!
//! A file belongs to a row of [`table`], to a module of end-to-end tests ([`modules`]), or to a package
//! ([`packages`]), whose dependents and programs are affected with it. A file that is no source also affects
//! what reads it ([`readers`]), such as the test of a page.
//!
//! Invariant: too much is chosen rather than too little; a file that belongs to nothing chooses everything.
//! Failure: git or cargo does not answer, or the reference is no commit.

mod files;
mod modules;
mod packages;
mod readers;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Result;

use self::modules::Module;
use self::packages::Packages;
use self::table::Tests;
use super::part::Part;
use super::weights::begins_with;
use crate::workspace;

/// What runs in every case: it takes two seconds.
const ALWAYS: Part = Part::Fmt;

/// Tests by the beginnings of their names, each with the first reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection {
    /// All of them, because of a file.
    Everything(String),
    /// These, which are none when no test depends on what changed.
    Tests(BTreeMap<String, String>),
}

impl Selection {
    /// What the files can affect that differ from a commit, those that git does not know among them.
    pub(crate) fn since(reference: &str) -> Result<Self> {
        let root = workspace::root();
        let changed = files::since(&root, reference)?;
        let sources = files::sources(&root)?;
        Ok(Chooser {
            packages: &Packages::read()?,
            sources: &sources,
        }
        .choose(&changed))
    }

    /// Whether the job, or the test of a program, is among them.
    pub(super) fn has(&self, name: &str) -> bool {
        let name = name.strip_suffix(" as root").unwrap_or(name);
        match self {
            Self::Everything(_) => true,
            Self::Tests(tests) => tests.keys().any(|test| begins_with(name, test)),
        }
    }

    /// Whether all tests are.
    pub(crate) fn is_everything(&self) -> bool {
        matches!(self, Self::Everything(_))
    }

    /// Whether no test is.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Tests(tests) if tests.is_empty())
    }

    /// The parts of the suite that have tests of it. The lints and the documentation of crates are left to a
    /// whole run.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let Self::Tests(tests) = self else {
            return Part::all().to_vec();
        };
        let named = |name: &str| {
            let mut all = Part::all().iter().copied();
            all.find(|part| part.to_string() == name)
        };
        let mut parts = BTreeSet::from([ALWAYS]);
        for test in tests.keys() {
            let program = test.split("::").next().unwrap_or(test);
            let of_crates = [Part::Unit, Part::Integration];
            parts.extend(named(program).map_or(of_crates.to_vec(), |part| vec![part]));
        }
        parts.into_iter().collect()
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything(file) => write!(formatter, "all tests run: {file} changed"),
            Self::Tests(tests) if tests.is_empty() => {
                formatter.write_str("no test depends on what changed")
            }
            Self::Tests(tests) => {
                formatter.write_str("tests that the change can affect:")?;
                for (test, reason) in tests {
                    write!(formatter, "\n  {test:<24}  {reason}")?;
                }
                Ok(())
            }
        }
    }
}

/// Why a file chooses everything.
#[derive(Debug)]
struct Everything;

/// What is known of the sources.
#[derive(Debug)]
struct Chooser<'a> {
    packages: &'a Packages,
    /// Source files and their text.
    sources: &'a BTreeMap<String, String>,
}

impl Chooser<'_> {
    fn choose(&self, changed: &[String]) -> Selection {
        let mut tests = BTreeMap::new();
        for file in changed {
            if let Err(Everything) = self.add(file, &mut tests) {
                return Selection::Everything(file.clone());
            }
        }
        let all: Vec<_> = tests.keys().cloned().collect();
        let is_part_of = |test: &str, other: &str| test != other && begins_with(test, other);
        tests.retain(|test, _| !all.iter().any(|other| is_part_of(test, other)));
        Selection::Tests(tests)
    }

    fn add(&self, file: &str, tests: &mut BTreeMap<String, String>) -> Result<(), Everything> {
        let readers = readers::all(file, self.sources);
        let mut is_known = !readers.is_empty();
        is_known |= self.add_by_place(file, file, tests)?;
        for reader in readers {
            let reason = format!("{file}, by {}", reader.source);
            if reader.is_test
                && Module::of_file(reader.source).is_none()
                && let Some(package) = self.packages.owner(reader.source)
            {
                note(tests, package, &reason);
                continue;
            }
            self.add_by_place(reader.source, &reason, tests)?;
        }
        if is_known { Ok(()) } else { Err(Everything) }
    }

    /// Adds what depends on a file because of the place where it is; whether that place is known.
    fn add_by_place(
        &self,
        file: &str,
        reason: &str,
        tests: &mut BTreeMap<String, String>,
    ) -> Result<bool, Everything> {
        if let Some(row) = table::row(file) {
            let Tests::Named(names) = row else {
                return Err(Everything);
            };
            for name in names {
                note(tests, name, reason);
            }
            return Ok(true);
        }
        if let Some(module) = Module::of_file(file) {
            for name in &module.with_users(self.sources) {
                note(tests, name, reason);
            }
            return Ok(true);
        }
        let Some(package) = self.packages.owner(file) else {
            return Ok(false);
        };
        note(tests, package, reason);
        let affected = self.packages.affected(package);
        for built in affected.built {
            note(tests, built, &format!("built of {package}: {reason}"));
            for test in table::of_program(built) {
                note(tests, test, &format!("runs {built}: {reason}"));
            }
        }
        for tested in affected.tested {
            note(tests, tested, &format!("tested with {package}: {reason}"));
        }
        Ok(true)
    }
}

/// Adds tests with the reason, unless they have one.
fn note(tests: &mut BTreeMap<String, String>, test: &str, reason: &str) {
    let reasons = tests.entry(test.to_owned());
    reasons.or_insert_with(|| reason.to_owned());
}
