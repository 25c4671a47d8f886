//! How many tests passed and failed.
//!
//! Invariant: an unsteady test is one of those that passed.
//! Failure: none.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;

use serde::Serialize;

/// How many tests of a part passed and failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Count {
    /// Passed.
    pub(super) passed: usize,
    /// Failed.
    pub(super) failed: usize,
    /// Of those that passed: failed at first.
    pub(super) unsteady: usize,
}

impl Count {
    /// This many that passed.
    pub(super) const fn passed(passed: usize) -> Self {
        Self {
            passed,
            failed: 0,
            unsteady: 0,
        }
    }

    /// This many that failed.
    pub(super) const fn failed(failed: usize) -> Self {
        Self {
            passed: 0,
            failed,
            unsteady: 0,
        }
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

/// The form that test runners end with; the report lists unsteady tests in lines of their own.
impl fmt::Display for Count {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)
    }
}
