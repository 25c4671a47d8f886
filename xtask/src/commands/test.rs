//! `test`: everything that must hold, part by part, with one summary.
//!
//! Invariant: a part that fails does not keep the others from running; the exit code is 0 only if all of
//! them passed.
//! Failure: the last line says how many tests passed and failed, and how many passed only when they ran again; a part that
//! could not run counts as one.

mod again;
mod cargo_test;
mod parts;

use std::iter::Sum;
use std::ops::AddAssign;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use self::parts::Part;
use super::setup;
use crate::report::Report;

/// Runs all tests; a part of them with --only.
#[derive(Debug, clap::Args)]
pub(crate) struct Test {
    /// Only this part; may be repeated.
    #[arg(long, value_name = "NAME")]
    only: Vec<Part>,
    /// Print the names of the parts.
    #[arg(long)]
    list: bool,
}

/// How many tests of a part passed and failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Passed.
    pub(crate) passed: usize,
    /// Failed.
    pub(crate) failed: usize,
    /// Of those that passed: failed at first.
    pub(crate) unsteady: usize,
}

impl Test {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if self.list {
            Part::ALL.iter().for_each(|part| println!("{part}"));
            return Ok(ExitCode::SUCCESS);
        }
        let parts: Vec<Part> = Part::ALL
            .into_iter()
            .filter(|part| self.only.is_empty() || self.only.contains(part))
            .collect();
        if parts.iter().any(|part| part.needs_packages())
            && setup::ensure(false)? != ExitCode::SUCCESS
        {
            return Ok(ExitCode::FAILURE);
        }
        let mut report = Report::default();
        let mut sum = Count::default();
        for part in parts {
            println!("\n== {part}");
            let started = Instant::now();
            let count = part.run().unwrap_or_else(|error| {
                eprintln!("{part}: {error:#}");
                Count {
                    failed: 1,
                    ..Count::default()
                }
            });
            sum += count;
            report.add(&part.to_string(), &count.to_string(), started.elapsed());
        }
        println!("\n{report}\n\n{sum}");
        Ok(if sum.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.unsteady += more.unsteady;
    }
}

impl Sum for Count {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut sum = Self::default();
        all.for_each(|count| sum += count);
        sum
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)?;
        match self.unsteady {
            0 => Ok(()),
            some => write!(formatter, ", {some} of them unsteady: they failed at first"),
        }
    }
}
