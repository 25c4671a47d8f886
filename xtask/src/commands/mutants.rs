//! `mutants`: changes the code of some areas, one expression at a time, and runs their tests
//! against each change.
//!
//! Invariant: the areas are those whose code decides something that no type checks. The work is
//! done in a copy of the workspace.
//! Failure: exit code 1 when a change was noticed by no test; `target/mutants/AREA/mutants.out` has
//! its difference.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::tools::{self, Tool};
use crate::{run, workspace};

/// Mutates the code of some areas and lists the mutations that no test detects.
#[derive(Debug, clap::Args)]
pub(crate) struct Mutants {
    /// Areas to mutate [default: all].
    areas: Vec<Area>,
    /// Only list the mutations.
    #[arg(long)]
    list: bool,
    /// Only mutations whose description matches this regular expression.
    #[arg(long)]
    only: Option<String>,
    /// Leave out the mutations that tests detected in earlier runs.
    #[arg(long)]
    iterate: bool,
}

/// Code to mutate, with the tests that must detect the mutations.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Area {
    /// Computation of the next step of a VirtualMachine.
    Lifecycle,
    /// Work queue of the controller.
    Workqueue,
    /// Priorities in the controller's work queue.
    Priority,
    /// Annotations and fields of pods.
    Podspec,
    /// Phases of sandboxes and containers.
    Phases,
    /// Selection of the runtime for a call in the proxy.
    Routing,
    /// Validation of disk images.
    Qcow2,
    /// Packet filter of a pod.
    Filter,
    /// Translation of image names.
    Translations,
}

/// Where an area is, and what `cargo test` is given for it.
struct Place {
    package: &'static str,
    files: &'static [&'static str],
    tests: &'static [&'static str],
}

impl Area {
    fn place(self) -> Place {
        let (package, files, tests): (_, &[_], &[_]) = match self {
            Self::Lifecycle => ("lifecycle", &["libs/lifecycle/src/**"], &[]),
            Self::Workqueue => ("workqueue", &["libs/workqueue/src/**"], &[]),
            Self::Priority => (
                "vmlet-controller",
                &["controller/src/priority.rs", "controller/src/priority/**"],
                &["--lib", "--test", "controller", "priority"],
            ),
            Self::Podspec => ("podspec", &["libs/podspec/src/**"], &[]),
            Self::Phases => (
                "vmlet",
                &["src/sandbox/state.rs", "src/vm/state.rs"],
                &["--lib"],
            ),
            Self::Routing => (
                "criproxy",
                &["criproxy/src/routes.rs", "criproxy/src/methods.rs"],
                &["--lib", "--test", "criproxy"],
            ),
            Self::Qcow2 => (
                "vmlet",
                &["src/images/qcow2.rs", "src/images/format.rs"],
                &["--lib", "images::"],
            ),
            Self::Filter => (
                "netns",
                &["libs/netns/src/filter.rs", "libs/netns/src/filter/**"],
                &["--lib", "--test", "netns", "--", "--include-ignored"],
            ),
            Self::Translations => (
                "vmlet",
                &["src/images/translate.rs", "src/images/translate/prefix.rs"],
                &["--lib", "images::"],
            ),
        };
        Place {
            package,
            files,
            tests,
        }
    }

    fn name(self) -> String {
        let value = self.to_possible_value();
        value
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

impl Mutants {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        tools::ensure(&[Tool::CargoMutants])?;
        let areas = match self.areas.as_slice() {
            [] => Area::value_variants(),
            areas => areas,
        };
        let mut survivors = Vec::new();
        for area in areas {
            survivors.extend(self.area(*area).with_context(|| area.name())?);
        }
        for survivor in &survivors {
            println!("no test notices: {survivor}");
        }
        Ok(if survivors.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// The changes in an area that no test noticed.
    fn area(&self, area: Area) -> Result<Vec<String>> {
        let place = area.place();
        let folder = workspace::target().join("mutants");
        let output = folder.join(area.name());
        fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
        let mut command = run::command(workspace::tools_bin().join("cargo-mutants"));
        command.args(["mutants", "--package", place.package, "--output"]);
        command.arg(&output);
        for file in place.files {
            command.args(["--file", file]);
        }
        if let Some(only) = &self.only {
            command.args(["--re", only]);
        }
        if self.iterate {
            command.arg("--iterate");
        }
        if self.list {
            run::check(command.arg("--list"))?;
            return Ok(Vec::new());
        }
        command
            .current_dir(workspace::root())
            // Every change is built on what the one before it left.
            .env("CARGO_TARGET_DIR", folder.join("build"))
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("CARGO_PROFILE_TEST_DEBUG", "false")
            // Fixed cases are to notice a change; thousands of random ones take most of the time.
            .env("PROPTEST_CASES", "64")
            .args(["--no-shuffle", "--colors", "never"])
            .arg("--")
            .args(place.tests);
        let line = run::describe(&command);
        let status = command.status().with_context(|| format!("run {line}"))?;
        // Its own codes: 2 for changes that no test noticed, 3 for tests that did not end.
        if !matches!(status.code(), Some(0 | 2 | 3)) {
            bail!("{line} ended with {status}");
        }
        // Tests that do not end are no survivors: the suite kills their program at its deadline.
        let path = output.join("mutants.out/missed.txt");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}
