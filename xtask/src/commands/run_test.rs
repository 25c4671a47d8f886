//! `run-test` (hidden): what cargo calls for each test program, so that one build of the whole workspace
//! serves all parts of the suite.
//!
//! Invariant: a program of another package is passed over with exit code 0; the others run as root.
//! Failure: the test program's own exit code.

use std::ffi::OsString;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::{run, workspace};

/// The crate whose tests drive whole node stacks.
const E2E: &str = "e2e";

/// Runs one test program as root, if it belongs to the part.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct RunTest {
    part: Part,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Which packages' tests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// All but the end-to-end tests.
    Integration,
    /// The end-to-end tests.
    E2e,
}

impl RunTest {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let package = std::env::var("CARGO_PKG_NAME").context("cargo did not name the package")?;
        if (package == E2E) != (self.part == Part::E2e) {
            return Ok(ExitCode::SUCCESS);
        }
        let [program, arguments @ ..] = self.command.as_slice() else {
            bail!("no test program given");
        };
        let mut test = run::root_command(program);
        let status = test
            .args(arguments)
            .stdin(Stdio::null())
            .status()
            .with_context(|| run::describe(&test))?;
        Ok(if status.success() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// `cargo test` over the whole workspace that runs only the ignored tests of `part`.
pub(crate) fn cargo(part: Part, threads: usize) -> Result<Command> {
    let word = match part {
        Part::Integration => "integration",
        Part::E2e => "e2e",
    };
    let runner = serde_json::json!([run::myself()?, "run-test", word]);
    let mut cargo = workspace::cargo();
    cargo
        .arg("--config")
        .arg(format!("target.'cfg(all())'.runner={runner}"));
    cargo.args([
        "test",
        "--workspace",
        "--lib",
        "--bins",
        "--tests",
        "--no-fail-fast",
    ]);
    cargo
        .args(["--", "--ignored"])
        .arg(format!("--test-threads={threads}"));
    Ok(cargo)
}
