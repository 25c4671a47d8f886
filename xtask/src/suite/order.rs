//! What a run of the suite is to run: parts and names, and the jobs that follow from them.
//!
//! Invariant: each test of a part that is to run belongs to exactly one job.
//! Failure: a test program that cannot list its tests.

use std::time::Duration;

use anyhow::Result;

use super::changed::Selection;
use super::checks::Check;
use super::job::{Job, What};
use super::manifest::Manifest;
use super::part::Part;
use super::programs::{self, Built};
use super::speed;
use crate::stack;

/// The variable by which tests learn that they are to take their long form.
const LONG: &str = "VMLET_TEST_LONG";

/// The variable by which tests learn that their stacks stay: see `tests/e2e/src/attach.rs`.
pub(super) const KEEP: &str = "VMLET_TEST_KEEP";

/// What is to be run, and how.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// These parts.
    pub(crate) parts: Vec<Part>,
    /// Only tests with one of these in their name; all of them when empty.
    pub(crate) names: Vec<String>,
    /// Only tests that a change can affect.
    pub(crate) selection: Option<Selection>,
    /// How often.
    pub(crate) repeat: usize,
    /// Busy processes beside it.
    pub(crate) load: usize,
    /// The long forms of tests.
    pub(crate) long: bool,
    /// Stacks stay when their tests end.
    pub(crate) keep: bool,
}

impl Order {
    /// Whether the part runs.
    pub(super) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    fn matches(&self, name: &str) -> bool {
        let is_named =
            self.names.is_empty() || self.names.iter().any(|word| name.contains(word.as_str()));
        let selection = self.selection.as_ref();
        is_named && selection.is_none_or(|selection| selection.has(name))
    }

    /// The tests of single crates, a job for each program.
    pub(super) fn crates(&self, built: &Built) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for program in &built.tests {
            for root in [false, true] {
                let part = if root {
                    program.root_part()
                } else {
                    Part::Unit
                };
                if !self.has(part) || part.has_stacks() {
                    continue;
                }
                let mut tests = program.list(root)?;
                let before = tests.len();
                tests.retain(|test| self.matches(&format!("{}::{test}", program.name)));
                if tests.is_empty() {
                    continue;
                }
                jobs.push(Job {
                    name: if root {
                        format!("{} as root", program.name)
                    } else {
                        program.name.clone()
                    },
                    part,
                    expected: Duration::ZERO,
                    what: What::Tests {
                        program: program.clone(),
                        all: tests.len() == before,
                        tests,
                    },
                });
            }
        }
        Ok(jobs)
    }

    /// Each test with a whole stack is a job; and what else runs beside them.
    pub(super) fn stacks(&self, built: &Built) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for program in &built.tests {
            let part = program.root_part();
            if !part.has_stacks() || !self.has(part) {
                continue;
            }
            for test in program.list(true)? {
                jobs.push(Job {
                    name: format!("{}::{test}", program.name),
                    part,
                    expected: Duration::ZERO,
                    what: What::Tests {
                        program: program.clone(),
                        tests: vec![test],
                        all: false,
                    },
                });
            }
        }
        let critest = if self.long {
            Check::WholeCritest
        } else {
            Check::Critest
        };
        for check in [critest, Check::Doc, Check::Deny, Check::Rules] {
            if self.has(check.part()) {
                jobs.push(Job::check(check));
            }
        }
        jobs.retain(|job| self.matches(&job.name));
        Ok(jobs)
    }

    /// What tests are given in their environment.
    pub(super) fn variables(&self, slowness: f64) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            (speed::VARIABLE, format!("{slowness:.2}")),
            // kubectl, crictl and critest as the programs of a stack.
            (stack::COLLECTOR.0, stack::COLLECTOR.1.to_owned()),
        ];
        variables.extend(self.long.then(|| (LONG, "1".to_owned())));
        variables.extend(self.keep.then(|| (KEEP, "1".to_owned())));
        variables
    }
}

/// The manifest of a whole run, for whose list everything is built.
pub(crate) fn list() -> Result<String> {
    let order = Order {
        parts: Part::all().to_vec(),
        names: Vec::new(),
        selection: None,
        repeat: 1,
        load: 0,
        long: false,
        keep: false,
    };
    let built = programs::built(false)?;
    let mut jobs = order.crates(&built)?;
    jobs.extend(order.stacks(&built)?);
    Ok(manifest_of(&jobs).to_string())
}

/// The list of these jobs.
pub(super) fn manifest_of(jobs: &[Job]) -> Manifest {
    Manifest::new(jobs.iter().map(|job| (job.name.as_str(), job.tests())))
}
