//! The verbs of `cargo xtask`, one module each.
//!
//! Invariant: a verb returns an exit code; 0 means that all of its work is done.
//! Failure: whatever stopped it returns as an error with its context.

mod bench;
pub(crate) mod build;
mod chaos;
mod chart;
mod coverage;
mod crds;
mod critest;
mod deb;
mod demo;
mod down;
pub(crate) mod earlier;
mod fuzz;
pub(crate) mod guest;
mod image;
mod machine;
mod manifest;
mod mutants;
mod reboot;
mod release;
mod restart;
pub(crate) mod setup;
mod test;
pub(crate) mod tools;
mod unsteady;
pub(crate) mod up;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::stack;

/// Development tasks of the repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about)]
pub(crate) struct Xtask {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Demo(demo::Demo),
    Test(test::Test),
    Critest(critest::Critest),
    Mutants(mutants::Mutants),
    Coverage(coverage::Coverage),
    Fuzz(fuzz::Fuzz),
    Bench(bench::Bench),
    Chaos(chaos::Chaos),
    Chart(chart::Chart),
    Setup(setup::Setup),
    Tools(tools::Tools),
    Guest(guest::Guest),
    Image(image::Image),
    Deb(deb::Deb),
    Machine(machine::Machine),
    Manifest(manifest::Manifest),
    Release(release::Release),
    Crds(crds::Crds),
    Unsteady(unsteady::Unsteady),
    Up(up::Up),
    Down(down::Down),
    Earlier(earlier::Earlier),
    Restart(restart::Restart),
    Reboot(reboot::Reboot),
    #[command(flatten)]
    Inner(stack::Inner),
}

impl Xtask {
    /// Runs the chosen verb.
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.verb {
            Verb::Demo(verb) => verb.run(),
            Verb::Test(verb) => verb.run(),
            Verb::Critest(verb) => verb.run(),
            Verb::Mutants(verb) => verb.run(),
            Verb::Coverage(verb) => verb.run(),
            Verb::Fuzz(verb) => verb.run(),
            Verb::Bench(verb) => verb.run(),
            Verb::Chaos(verb) => verb.run(),
            Verb::Chart(verb) => verb.run(),
            Verb::Setup(verb) => verb.run(),
            Verb::Tools(verb) => verb.run(),
            Verb::Guest(verb) => verb.run(),
            Verb::Image(verb) => verb.run(),
            Verb::Deb(verb) => verb.run(),
            Verb::Machine(verb) => verb.run(),
            Verb::Manifest(verb) => verb.run(),
            Verb::Release(verb) => verb.run(),
            Verb::Crds(verb) => verb.run(),
            Verb::Unsteady(verb) => verb.run(),
            Verb::Up(verb) => verb.run(),
            Verb::Down(verb) => verb.run(),
            Verb::Earlier(verb) => verb.run(),
            Verb::Restart(verb) => verb.run(),
            Verb::Reboot(verb) => verb.run(),
            Verb::Inner(verb) => verb.run().map(|()| ExitCode::SUCCESS),
        }
    }
}
