//! Builds the workspace once, with all its test programs, and lists them.
//!
//! Invariant: the programs that tests start are of the same build; a run of the suite calls cargo
//! for them only here. With lints, clippy's driver is the compiler of the workspace's crates:
//! dependencies are compiled once for both.
//! Failure: what the compiler reports; a test program that cannot list its tests is named.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::count::Count;
use super::libtest;
use super::outcome::Outcome;
use super::part::Part;
use crate::{run, workspace};

/// The crate whose tests drive whole stacks.
const E2E: &str = "e2e";

/// Targets that are built for their lints alone, and hold no tests.
const LINTED_ONLY: [&str; 2] = ["bench", "example"];

/// A built test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TestProgram {
    /// The crate, and the target unless it holds the tests inside the crate's library. Unique: the
    /// name of the log file follows from it.
    pub(super) name: String,
    /// What cargo built.
    pub(super) file: PathBuf,
    /// Its package.
    package: String,
    /// Where cargo runs it.
    folder: PathBuf,
    /// The part that its end-to-end tests belong to.
    end_to_end: Option<Part>,
}

/// All that one build made.
#[derive(Debug, Default)]
pub(super) struct Built {
    /// Programs that hold tests.
    pub(super) tests: Vec<TestProgram>,
    /// Every program, test programs among them.
    pub(super) files: Vec<PathBuf>,
    /// What the compiler, and clippy with lints, said about our own code, as they render it.
    pub(super) warnings: Vec<String>,
}

/// A line of cargo's, as far as we care.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    package_id: String,
    #[serde(default)]
    manifest_path: PathBuf,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
    message: Option<Diagnostic>,
}

/// What the compiler reports.
#[derive(Debug, Deserialize)]
struct Diagnostic {
    #[serde(default)]
    rendered: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// Builds everything for development, test programs and programs under test alike.
pub(crate) fn build() -> Result<()> {
    run::check(cargo().arg("--quiet"))
}

/// The same, with clippy's lints if `lints`; returns what was built.
pub(super) fn built(lints: bool) -> Result<Built> {
    let mut command = cargo();
    command.arg("--message-format=json");
    if lints {
        command.args(["--benches", "--examples"]);
        command.env(
            "RUSTC_WORKSPACE_WRAPPER",
            clippy_driver(command.get_program()),
        );
    }
    let line = run::describe(&command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run {line}"))?;
    let built = parse(&String::from_utf8_lossy(&output.stdout));
    for text in built.iter().flat_map(|built| &built.warnings) {
        eprint!("{text}");
    }
    if !output.status.success() {
        bail!("{line} ended with {}", output.status);
    }
    built
}

/// The compiler with clippy's lints, which is beside cargo.
pub(super) fn clippy_driver(cargo: &OsStr) -> PathBuf {
    Path::new(cargo).with_file_name("clippy-driver")
}

impl Built {
    /// What lints found.
    pub(super) fn lints(&self) -> Outcome {
        let name = Part::Clippy.to_string();
        if self.warnings.is_empty() {
            Outcome {
                job: name,
                part: Part::Clippy,
                count: Count::passed(1),
                took: Duration::ZERO,
                failures: Vec::new(),
            }
        } else {
            Outcome::not_run(&name, Part::Clippy, &self.warnings.concat())
        }
    }
}

fn cargo() -> Command {
    let mut cargo = workspace::cargo();
    cargo.args([
        "test",
        "--workspace",
        "--lib",
        "--bins",
        "--tests",
        "--no-run",
        // As in a release. The examples are built with the daemon without it.
        "--features=vmlet/otel",
    ]);
    cargo
}

fn parse(messages: &str) -> Result<Built> {
    let mut built = Built::default();
    for line in messages.lines() {
        let message: Message = serde_json::from_str(line).context("parse cargo's messages")?;
        let diagnostic = message.message.and_then(|message| message.rendered);
        built.warnings.extend(diagnostic);
        let Some(file) = message.executable else {
            continue;
        };
        let Some(target) = message.target else {
            continue;
        };
        let Some(profile) = message.profile else {
            continue;
        };
        if message.reason != "compiler-artifact" {
            continue;
        }
        if target
            .kind
            .iter()
            .any(|kind| LINTED_ONLY.contains(&kind.as_str()))
        {
            continue;
        }
        if profile.test {
            let folder = message.manifest_path.parent().unwrap_or(Path::new("/"));
            let package = package(&message.package_id);
            let program = TestProgram::new(package, folder, &target, &file);
            built.tests.push(program);
        }
        built.files.push(file);
    }
    Ok(built)
}

/// The name in an id such as `path+file:///x/libs/cni#0.1.0` or `path+file:///x#vmlet@0.1.0`.
fn package(id: &str) -> &str {
    let (path, rest) = id.rsplit_once('#').unwrap_or((id, ""));
    match rest.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

impl TestProgram {
    fn new(package: &str, folder: &Path, target: &Target, file: &Path) -> Self {
        let is = |sort: &str| target.kind.iter().any(|kind| kind == sort);
        let end_to_end = (is("test") && package == E2E)
            .then(|| Part::of_program(&target.name))
            .flatten();
        let name = match end_to_end {
            Some(part) => part.to_string(),
            None if is("lib") => package.to_owned(),
            // A package may have a binary and an integration test of one name; each has its own
            // log.
            None if is("bin") => format!("{package}::bin::{}", target.name),
            None => format!("{package}::{}", target.name),
        };
        Self {
            name,
            file: file.to_owned(),
            package: package.to_owned(),
            folder: folder.to_owned(),
            end_to_end,
        }
    }

    /// The part of its tests that need root.
    pub(super) fn root_part(&self) -> Part {
        self.end_to_end.unwrap_or(Part::Integration)
    }

    /// The names of its tests: those that need root, or the others.
    pub(super) fn list(&self, root: bool) -> Result<Vec<String>> {
        let list = |ignored: &[&str]| {
            let mut command = self.command(false);
            command.args(["--list", "--format", "terse"]).args(ignored);
            run::output(&mut command).map(|list| libtest::names(&list))
        };
        let need_root = list(&["--ignored"])?;
        if root {
            return Ok(need_root);
        }
        let mut all = list(&[])?;
        all.retain(|name| !need_root.contains(name));
        Ok(all)
    }

    /// The program, where and with what cargo would run it.
    pub(super) fn command(&self, root: bool) -> Command {
        let mut command = if root {
            run::root_command(&self.file)
        } else {
            run::command(&self.file)
        };
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO_PKG_NAME", &self.package)
            // An error of a test names its steps; a trace of the test runner's frames would bury
            // them.
            .env("RUST_LIB_BACKTRACE", "0");
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, kind: &str, name: &str, test: bool) -> String {
        serde_json::json!({
            "reason": "compiler-artifact", "package_id": package, "manifest_path": "/x/Cargo.toml",
            "target": { "kind": [kind], "name": name }, "profile": { "test": test },
            "executable": format!("/target/{name}"), "fresh": true,
        })
        .to_string()
    }

    #[test]
    fn a_test_program_is_named_after_its_crate_and_belongs_to_one_part() {
        let lines = [
            artifact("path+file:///x#vmlet@0.1.0", "lib", "daemon", true),
            artifact("path+file:///x#vmlet@0.1.0", "bin", "vmlet", false),
            artifact("path+file:///x/libs/cni#0.1.0", "test", "cni", true),
            artifact("path+file:///x/tests/e2e#0.1.0", "lib", "e2e", true),
            artifact("path+file:///x/tests/e2e#0.1.0", "bin", "bench-stack", true),
            artifact("path+file:///x/tests/e2e#0.1.0", "test", "api", true),
            artifact("path+file:///x/cli#vmletctl@0.1.0", "test", "api", true),
            artifact("path+file:///x/libs/cni#0.1.0", "bench", "shapes", true),
            artifact("path+file:///x/libs/cni#0.1.0", "example", "cni", true),
            r#"{"reason":"compiler-message","message":{"rendered":"warning: unused"}}"#.to_owned(),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let built = parse(&lines.join("\n")).unwrap();
        assert_eq!(built.files.len(), 7);
        assert_eq!(built.warnings, ["warning: unused"]);
        let found: Vec<_> = built
            .tests
            .iter()
            .map(|t| (&*t.name, t.root_part()))
            .collect();
        let expected = [
            ("vmlet", Part::Integration),
            ("cni::cni", Part::Integration),
            ("e2e", Part::Integration),
            ("e2e::bin::bench-stack", Part::Integration),
            ("api", Part::Api),
            ("vmletctl::api", Part::Integration),
        ];
        assert_eq!(found, expected);
    }
}
