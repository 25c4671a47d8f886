//! `coverage`: which lines of each folder the tests reach that need no root.
//!
//! Invariant: the build is apart from all others, in `target/llvm-cov-target`; the result is a table, not a verdict.
//! Failure: a test that fails; without the programs of LLVM that read coverage, the packages that have them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::tools::{self, Tool};
use crate::{run, workspace};

/// Programs of LLVM, and the variables by which `cargo llvm-cov` gets them.
const PROGRAMS: [(&str, &str); 2] = [("llvm-cov", "LLVM_COV"), ("llvm-profdata", "LLVM_PROFDATA")];
/// Of a distribution, where the toolchain has none: this version or a later one reads what the compiler writes.
const DISTRIBUTION: [u32; 4] = [22, 21, 20, 19];

/// Runs the tests that need no root, and prints a table of the lines that they reach.
#[derive(Debug, clap::Args)]
pub(crate) struct Coverage {
    /// Packages whose tests run [default: all].
    packages: Vec<String>,
}

/// The parts of the report that count here.
#[derive(Debug, Deserialize)]
struct Report {
    data: Vec<Data>,
}

#[derive(Debug, Deserialize)]
struct Data {
    files: Vec<File>,
}

#[derive(Debug, Deserialize)]
struct File {
    filename: PathBuf,
    summary: Summary,
}

#[derive(Debug, Deserialize)]
struct Summary {
    lines: Lines,
}

/// How many lines there are, and how many a test reached.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Lines {
    count: u64,
    covered: u64,
}

/// The lines of each folder.
#[derive(Debug, Default)]
struct Table(BTreeMap<PathBuf, Lines>);

impl Coverage {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let mut command = run::command(workspace::tools_bin().join("cargo-llvm-cov"));
        command.current_dir(workspace::root());
        for (program, variable) in PROGRAMS {
            command.env(variable, find(program)?);
        }
        tools::ensure(&[Tool::CargoLlvmCov])?;
        let result = workspace::target().join("coverage.json");
        command.args(["llvm-cov", "--json", "--summary-only", "--output-path"]);
        command.arg(&result);
        for package in &self.packages {
            command.args(["--package", package]);
        }
        if self.packages.is_empty() {
            command.arg("--workspace");
        }
        run::check(command.args(["--lib", "--bins", "--tests"]))?;
        let text =
            fs::read_to_string(&result).with_context(|| format!("read {}", result.display()))?;
        let report = serde_json::from_str(&text).context("parse the report of llvm-cov")?;
        println!("{}", Table::new(&report, &workspace::root()));
        Ok(ExitCode::SUCCESS)
    }
}

/// A program of the toolchain, or of the distribution.
fn find(program: &str) -> Result<PathBuf> {
    let mut rustc = run::command("rustc");
    let rustc = rustc.current_dir(workspace::root());
    let libraries = run::output(rustc.args(["--print", "target-libdir"]))?;
    // Beside the libraries, in a folder of the component `llvm-tools`.
    let own = Path::new(libraries.trim())
        .with_file_name("bin")
        .join(program);
    if own.is_file() {
        return Ok(own);
    }
    let names = DISTRIBUTION.map(|version| format!("{program}-{version}"));
    let path = run::search_path();
    for name in names {
        let mut places = std::env::split_paths(&path).map(|folder| folder.join(&name));
        if let Some(found) = places.find(|place| place.is_file()) {
            return Ok(found);
        }
    }
    bail!(
        "{program} is missing: install it by `rustup component add llvm-tools`, or by `apt-get install llvm-19`"
    )
}

impl Table {
    /// The coverage of the files below `root`.
    fn new(report: &Report, root: &Path) -> Self {
        let mut folders = BTreeMap::<PathBuf, Lines>::new();
        let files = report.data.iter().flat_map(|data| &data.files);
        for file in files {
            let below = file.filename.strip_prefix(root).ok();
            let Some(folder) = below.and_then(Path::parent) else {
                continue;
            };
            let lines = folders.entry(folder.to_owned()).or_default();
            lines.count += file.summary.lines.count;
            lines.covered += file.summary.lines.covered;
        }
        Self(folders)
    }

    fn total(&self) -> Lines {
        let add = |sum: Lines, lines: &Lines| Lines {
            count: sum.count + lines.count,
            covered: sum.covered + lines.covered,
        };
        self.0.values().fold(Lines::default(), add)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("| folder | lines | reached |\n| --- | ---: | ---: |\n")?;
        for (folder, lines) in &self.0 {
            writeln!(formatter, "| `{}` | {lines} |", folder.display())?;
        }
        write!(formatter, "| all | {} |", self.total())
    }
}

impl fmt::Display for Lines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = (self.covered * 100).checked_div(self.count).unwrap_or(100);
        write!(formatter, "{} | {percent} %", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_added_up_by_folder_and_those_elsewhere_are_left_out() {
        let lines = |count: u64, covered: u64| serde_json::json!({ "lines": { "count": count, "covered": covered, "percent": 0.5 } });
        let report = serde_json::json!({ "data": [{ "files": [
            { "filename": "/r/src/a.rs", "summary": lines(10, 5) },
            { "filename": "/r/src/b.rs", "summary": lines(30, 30) },
            { "filename": "/r/src/b/c.rs", "summary": lines(0, 0) },
            { "filename": "/other/d.rs", "summary": lines(9, 9) },
        ], "totals": {} }] });
        let report = serde_json::from_value(report).unwrap();
        let table = Table::new(&report, Path::new("/r")).to_string();
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| `src` | 40 | 87 % |",
                "| `src/b` | 0 | 100 % |",
                "| all | 40 | 87 % |"
            ]
        );
    }
}
