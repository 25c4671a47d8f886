//! The test suite: its jobs, their order, their results.
//!
//! One run goes through these stages:
//!
//! 1. [`kit`] builds tools and images that only later stages need, at low priority, beside the
//!    others.
//! 2. [`checks`] looks at form and lints; [`programs`] builds every test program and every program
//!    under test, once.
//! 3. [`order`] makes the [`job`]s, which [`manifest`] compares with the list of all tests;
//!    [`lanes`] runs them side by side, as many as [`weights`] says the machine can hold: the
//!    documentation and the tests of single crates start first, then node stacks and clusters, the longest
//!    first; the shortest of those that [`changed`] chooses.
//! 4. [`retry`] repeats the few tests for which a program which is not ours was late, with the
//!    machine under load.
//!    [`unsteady`] is their history.
//! 5. [`frozen`] proves that no program was built or linked after stage 2; [`report`] states what
//!    took how long.
//!
//! Invariant: a job that started and did not end with a result line of its own has failed; so has a
//! run in which more than [`retry::MOST`] tests passed only when they were repeated.
//! Failure: a stage that cannot run counts as one failed test of its part, and the others continue.

mod changed;
mod checks;
mod child;
mod count;
mod frozen;
mod host;
mod idle;
mod job;
mod kit;
mod lanes;
mod libtest;
mod load;
mod manifest;
mod order;
mod outcome;
mod part;
mod programs;
mod queue;
mod report;
mod retry;
mod run;
mod space;
mod speed;
mod unsteady;
mod weights;

pub(crate) use changed::Selection;
pub(crate) use manifest::FILE as MANIFEST;
pub(crate) use order::{Order, list};
pub(crate) use part::Part;
pub(crate) use programs::build;
pub(crate) use retry::late_mark;
pub(crate) use run::run;
pub(crate) use space::statement as space_statement;
pub(crate) use speed::variable as slowness;
pub(crate) use unsteady::{FILE as UNSTEADY, History};
