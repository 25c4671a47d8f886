//! `run-test` (hidden): what cargo calls for each test program, so that one build of the whole workspace
//! serves all parts of the suite.
//!
//! Invariant: a program of another package is passed over with exit code 0; the others run as root.
//! Failure: the test program's own exit code.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::{run, workspace};

/// The crate whose tests drive whole node stacks.
const E2E: &str = "e2e";
/// What its test programs that need a cluster are called: a whole one, or one without nodes.
const CLUSTER_TESTS: [&str; 2] = ["cluster_", "api_"];

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
    /// The end-to-end tests with single nodes.
    E2e,
    /// Those with clusters.
    Cluster,
}

impl RunTest {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let package = std::env::var("CARGO_PKG_NAME").context("cargo did not name the package")?;
        let [program, arguments @ ..] = self.command.as_slice() else {
            bail!("no test program given");
        };
        if self.part != Part::of(&package, Path::new(program)) {
            return Ok(ExitCode::SUCCESS);
        }
        let mut test = run::root_command(program);
        let status = test
            .args(arguments)
            .stdin(Stdio::null())
            // An error of a test names its steps; a trace of the test runner's frames would bury them.
            .env("RUST_LIB_BACKTRACE", "0")
            .status()
            .with_context(|| run::describe(&test))?;
        Ok(if status.success() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

impl Part {
    /// The part that a package's test program belongs to.
    fn of(package: &str, program: &Path) -> Self {
        let file = program.file_name().unwrap_or_default().to_string_lossy();
        match package == E2E {
            false => Self::Integration,
            true if is_cluster_test(&file) => Self::Cluster,
            true => Self::E2e,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Integration => "integration",
            Self::E2e => "e2e",
            Self::Cluster => "cluster",
        }
    }
}

fn is_cluster_test(file: &str) -> bool {
    CLUSTER_TESTS.iter().any(|prefix| file.starts_with(prefix))
}

/// `cargo test` over the whole workspace that runs only the ignored tests of `part`.
pub(crate) fn cargo(part: Part, threads: usize) -> Result<Command> {
    let mut cargo = cargo_test(part)?;
    cargo.args(["--lib", "--bins", "--tests"]);
    cargo
        .args(["--", "--ignored"])
        .arg(format!("--test-threads={threads}"));
    Ok(cargo)
}

/// The files of tests that belong to a part with whole stacks, by name.
pub(crate) fn files(part: Part) -> Result<Vec<String>> {
    let folder = workspace::root().join("tests/e2e/tests");
    let listing = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut files = Vec::new();
    for entry in listing {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") && Part::of(E2E, &path) == part {
            let stem = path.file_stem().unwrap_or_default();
            files.push(stem.to_string_lossy().into_owned());
        }
    }
    files.sort();
    Ok(files)
}

/// `cargo test` for one of these files, one test after the other.
pub(crate) fn cargo_file(part: Part, file: &str) -> Result<Command> {
    let mut cargo = cargo_test(part)?;
    cargo.args([
        "--quiet",
        "--test",
        file,
        "--",
        "--ignored",
        "--test-threads=1",
    ]);
    Ok(cargo)
}

/// Builds the tests of all parts with whole stacks.
pub(crate) fn build() -> Result<()> {
    let mut cargo = workspace::cargo();
    run::check(cargo.args(["test", "--workspace", "--tests", "--no-run"]))
}

/// The cluster tests, or those of one file (of a single node, too; with or without its prefix), or the cluster tests
/// with `name` in theirs.
pub(crate) fn cargo_cluster(name: Option<&str>) -> Result<Command> {
    let tests = workspace::root().join("tests/e2e/tests");
    let file = name.and_then(|name| {
        let full = CLUSTER_TESTS.map(|prefix| format!("{prefix}{name}"));
        let mut files = full.into_iter().chain([name.to_owned()]);
        files.find(|file| tests.join(format!("{file}.rs")).exists())
    });
    let part = file
        .as_deref()
        .map_or(Part::Cluster, |file| Part::of(E2E, Path::new(file)));
    let mut cargo = cargo_test(part)?;
    if let Some(file) = file {
        cargo.args(["--test", &file, "--"]);
    } else {
        for prefix in CLUSTER_TESTS {
            cargo.args(["--test", &format!("{prefix}*")]);
        }
        cargo.arg("--").args(name);
    }
    // Numbers that tests print are part of the result.
    cargo.args(["--ignored", "--show-output", "--test-threads=2"]);
    Ok(cargo)
}

fn cargo_test(part: Part) -> Result<Command> {
    let runner = serde_json::json!([run::myself()?, "run-test", part.word()]);
    let mut cargo = workspace::cargo();
    cargo
        .arg("--config")
        .arg(format!("target.'cfg(all())'.runner={runner}"));
    cargo.args(["test", "--workspace", "--no-fail-fast"]);
    Ok(cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_belongs_to_one_part() {
        let program = |name: &str| Path::new("/target/debug/deps").join(name);
        for (package, name, part) in [
            ("vmlet", "restart-0123", Part::Integration),
            ("vmlet", "cluster_name-0123", Part::Integration),
            ("e2e", "survival-0123", Part::E2e),
            ("e2e", "cluster_basic-0123", Part::Cluster),
            ("e2e", "api_rules-0123", Part::Cluster),
        ] {
            assert_eq!(Part::of(package, &program(name)), part, "{package} {name}");
        }
    }
}
