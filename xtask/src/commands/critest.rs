//! `critest`: the conformance suite of the Container Runtime Interface against a stack of its own.
//!
//! Invariant: `tests/critest/expected.tsv` has every specification of critest and states how each
//! must end.
//! Failure: exit code 1 when table and critest do not have the same specifications, when one ends
//! otherwise, for better or worse, when one did not run, and when the stack leaked anything.

mod expected;
mod report;
mod suite;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};

use self::expected::{Expected, Outcome};
use self::report::Spec;
use self::suite::Suite;
use super::build::Build;
use super::tools::{self, Tool};
use super::{guest, setup};
use crate::stack::Session;
use crate::workspace;

/// The runtime handler for which the table is true; without one, pods have the daemon's default.
const HANDLER: Option<&str> = Some("vmlet-process");

/// Runs critest and compares the results with the expected ones.
#[derive(Debug, clap::Args)]
pub(crate) struct Critest {
    /// Only specifications whose text contains this string.
    #[arg(long)]
    only: Option<String>,
    /// Also specifications that the table does not expect to pass.
    #[arg(long)]
    all: bool,
    /// Runtime handler of every pod [default: that of the table].
    #[arg(long, value_name = "NAME")]
    handler: Option<String>,
    /// Use critest, the programs and the guest image without building them.
    #[arg(long)]
    no_build: bool,
}

/// What became of the suite.
#[derive(Debug)]
struct Tally {
    /// Specifications that ended as expected.
    passed: usize,
    /// Those that did not, and leaks.
    failed: usize,
}

impl Critest {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if !self.no_build {
            if setup::ensure(false)? != ExitCode::SUCCESS {
                return Ok(ExitCode::FAILURE);
            }
            tools::ensure(&[Tool::Critest])?;
            guest::ensure()?;
            Build::DEVELOPMENT.programs()?;
        }
        let tally = self.suite()?;
        println!(
            "critest: {} as expected, {} not",
            tally.passed, tally.failed
        );
        Ok(if tally.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn suite(&self) -> Result<Tally> {
        let path = workspace::root().join("tests/critest/expected.tsv");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let table = Expected::parse(&text).with_context(|| format!("parse {}", path.display()))?;
        let catalogue = suite::all()?;
        let differences = table.compare_names(&catalogue);
        if !differences.is_empty() {
            report_all(&differences);
            return Ok(Tally {
                passed: 0,
                failed: differences.len(),
            });
        }
        let chosen = table.choose(self.only.as_deref(), self.all);
        let session = Session::up_with_registries("critest")?;
        let found = self.groups(&session, &chosen, &catalogue);
        let down = session.down();
        let found = found?;
        let differences = chosen.compare(&found);
        for (group, lines) in table.by_group(&catalogue) {
            summary(&group, &lines, &found);
        }
        summary("all groups", &table, &found);
        report_all(&differences);
        if let Err(error) = &down {
            println!("critest: {error:#}");
        }
        Ok(Tally {
            passed: chosen.len().saturating_sub(differences.len()),
            failed: differences.len() + usize::from(down.is_err()),
        })
    }

    /// Runs the chosen specifications, one group after the other.
    fn groups(
        &self,
        session: &Session,
        chosen: &Expected,
        catalogue: &[Spec],
    ) -> Result<Vec<Spec>> {
        let suite = Suite::new(session, self.handler.as_deref().or(HANDLER))?;
        let mut all = Vec::new();
        for (group, lines) in chosen.by_group(catalogue) {
            println!("critest: {group}: {} specifications", lines.len());
            for (text, outcome) in lines.lines() {
                let (found, output) = suite.run(text)?;
                let Some(found) = found else { continue };
                println!(
                    "critest: {} in {:.1} s: {text}",
                    found.outcome,
                    found.duration.as_secs_f64()
                );
                if found.outcome != outcome {
                    println!("{output}");
                }
                all.push(found);
            }
        }
        Ok(all)
    }
}

fn report_all(differences: &[String]) {
    for difference in differences {
        println!("critest: {difference}");
    }
}

/// Prints how many of the table's `lines` passed; no line when none of them ran.
fn summary(group: &str, lines: &Expected, found: &[Spec]) {
    let ran = found.iter().filter(|spec| lines.contains(&spec.text));
    let passed = ran.clone().filter(|spec| spec.outcome == Outcome::Pass);
    let passed = passed.count();
    let ran = ran.count();
    if ran > 0 {
        println!(
            "critest: {group}: {passed} passed, {ran} ran, of {}",
            lines.len()
        );
    }
}
