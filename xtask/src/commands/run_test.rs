//! `run-test` (hidden): what cargo calls for each test program, so that one build of the whole workspace
//! serves all parts of the suite.
//!
//! Invariant: a program of another package is passed over with exit code 0; the others run as root.
//! Failure: the test program's own exit code.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::{run, workspace};

/// The crate whose tests drive whole node stacks.
const E2E: &str = "e2e";
/// Its test programs, which are the folders below `tests`, and the part that each belongs to.
const PROGRAMS: [(&str, Part); 3] = [
    ("stacks", Part::E2e),
    ("clusters", Part::Cluster),
    ("api", Part::Cluster),
];

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
        let of_e2e = PROGRAMS
            .iter()
            .find(|(name, _)| file.split('-').next() == Some(name));
        match of_e2e {
            Some((_, part)) if package == E2E => *part,
            _ => Self::Integration,
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

/// `cargo test` over the whole workspace that runs only the ignored tests of `part`.
pub(crate) fn cargo(part: Part, threads: usize) -> Result<Command> {
    let mut cargo = cargo_test(part)?;
    cargo.args(["--lib", "--bins", "--tests"]);
    cargo
        .args(["--", "--ignored"])
        .arg(format!("--test-threads={threads}"));
    Ok(cargo)
}

/// A file of end-to-end tests: a module of a test program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct File {
    program: &'static str,
    module: String,
}

impl fmt::Display for File {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}::{}", self.program, self.module)
    }
}

/// The files of tests that belong to a part with whole stacks, by name.
pub(crate) fn files(part: Part) -> Result<Vec<File>> {
    let mut files = Vec::new();
    for (program, _) in PROGRAMS.iter().filter(|(_, of)| *of == part) {
        let folder = workspace::root().join("tests/e2e/tests").join(program);
        let listing = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in listing {
            let path = entry?.path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            if path.extension().is_some_and(|e| e == "rs") && stem != "main" {
                let module = stem.into_owned();
                files.push(File { program, module });
            }
        }
    }
    files.sort();
    Ok(files)
}

/// `cargo test` for one of these files, one test after the other.
pub(crate) fn cargo_file(part: Part, file: &File) -> Result<Command> {
    let mut cargo = cargo_test(part)?;
    cargo.args(["--quiet", "--test", file.program, "--"]);
    cargo.arg(format!("{}::", file.module));
    cargo.args(["--ignored", "--test-threads=1"]);
    Ok(cargo)
}

/// Builds the tests of all parts with whole stacks.
pub(crate) fn build() -> Result<()> {
    let mut cargo = workspace::cargo();
    run::check(cargo.args(["test", "--workspace", "--tests", "--no-run"]))
}

/// The cluster tests, or those of one file, or of any part those with `name` in theirs.
pub(crate) fn cargo_cluster(name: Option<&str>) -> Result<Command> {
    let mut all = Vec::new();
    for part in [Part::Cluster, Part::E2e] {
        all.extend(files(part)?.into_iter().map(|file| (part, file)));
    }
    let file = name.and_then(|name| all.into_iter().find(|(_, file)| file.module == name));
    let part = file.as_ref().map_or(Part::Cluster, |(part, _)| *part);
    let mut cargo = cargo_test(part)?;
    if let Some((_, file)) = file {
        cargo.args(["--test", file.program, "--"]);
        cargo.arg(format!("{}::", file.module));
    } else {
        cargo.args(["--test", "clusters", "--test", "api", "--"]);
        cargo.args(name);
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
            ("vmlet", "clusters-0123", Part::Integration),
            ("e2e", "e2e-0123", Part::Integration),
            ("e2e", "stacks-0123", Part::E2e),
            ("e2e", "clusters-0123", Part::Cluster),
            ("e2e", "api-0123", Part::Cluster),
        ] {
            assert_eq!(Part::of(package, &program(name)), part, "{package} {name}");
        }
    }
}
