//! Checks beside test programs: format, lints, examples, licences, and the conformance suite.
//!
//! Invariant: the exit code is the verdict; of the conformance suite the counts are known, too.
//! Failure: a program that cannot be started is an error.

use std::process::Command;

use anyhow::Result;

use super::count::Count;
use super::part::Part;
use super::programs;
use crate::{run, workspace};

/// The line in which `cargo xtask critest` prints its counts.
const CRITEST: &str = "critest: ";
/// What cargo calls for the examples in place of rustdoc.
const RUSTDOC: &str = "xtask/src/suite/rustdoc.sh";

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// rustfmt.
    Fmt,
    /// clippy, with warnings as errors.
    Clippy,
    /// clippy on the daemon without its feature `otel`, where nothing is built; [`Self::Doc`] builds
    /// the daemon so.
    Features,
    /// The documentation of libraries with its examples; a warning is an error.
    Doc,
    /// The documentation of programs, too.
    Rustdoc,
    /// cargo-deny.
    Deny,
    /// critest against our daemon: its conformance.
    Critest,
    /// All of critest that is expected to pass.
    WholeCritest,
    /// Prometheus's parsers on our alerts and dashboards.
    Rules,
}

impl Check {
    /// Its part.
    pub(super) fn part(self) -> Part {
        match self {
            Self::Fmt => Part::Fmt,
            Self::Clippy | Self::Features => Part::Clippy,
            Self::Doc | Self::Rustdoc => Part::Doc,
            Self::Deny => Part::Deny,
            Self::Critest | Self::WholeCritest => Part::Critest,
            Self::Rules => Part::Rules,
        }
    }

    /// The name of its job: that of its part, except for the second check of a part.
    pub(super) fn name(self) -> String {
        match self {
            Self::Rustdoc => "rustdoc".to_owned(),
            Self::Features => "features".to_owned(),
            _ => self.part().to_string(),
        }
    }

    /// The command.
    pub(super) fn command(self) -> Result<Command> {
        let (mut command, arguments): (_, &[&str]) = match self {
            Self::Fmt => (workspace::cargo(), &["fmt", "--all", "--check"]),
            Self::Clippy => {
                let clippy = &[
                    "clippy",
                    "--quiet",
                    "--workspace",
                    "--all-targets",
                    "--",
                    "-D",
                    "warnings",
                ];
                (workspace::cargo(), clippy)
            }
            Self::Features => {
                let clippy = &[
                    "clippy",
                    "--quiet",
                    // All of it, so that dependencies are those of the other call of clippy.
                    "--workspace",
                    "--bin=vmlet",
                    "--",
                    "-D",
                    "warnings",
                ];
                (workspace::cargo(), clippy)
            }
            Self::Doc => {
                let mut cargo = workspace::cargo();
                // As the build with lints, so that no crate is compiled twice.
                cargo.env(
                    "RUSTC_WORKSPACE_WRAPPER",
                    programs::clippy_driver(cargo.get_program()),
                );
                cargo.env("RUSTDOC", workspace::root().join(RUSTDOC));
                cargo.env("VMLET_RUSTDOC_OUT", workspace::target().join("doc"));
                (cargo, &["test", "--quiet", "--workspace", "--doc"])
            }
            Self::Rustdoc => {
                let mut cargo = workspace::cargo();
                cargo.env("RUSTDOCFLAGS", "-D warnings");
                let doc = &[
                    "doc",
                    "--quiet",
                    "--workspace",
                    "--no-deps",
                    "--document-private-items",
                ];
                (cargo, doc)
            }
            Self::Deny => {
                let mut deny = run::command(workspace::tools_bin().join("cargo-deny"));
                deny.current_dir(workspace::root());
                let arguments = &[
                    "--workspace",
                    "check",
                    "--hide-inclusion-graph",
                    "licenses",
                    "bans",
                    "sources",
                ];
                (deny, arguments)
            }
            Self::Rules => (rules()?, &[]),
            Self::Critest => {
                let conformance = &["critest", "--no-build", "--only", "[Conformance]"];
                (run::myself_as_root()?, conformance)
            }
            Self::WholeCritest => (run::myself_as_root()?, &["critest", "--no-build"]),
        };
        command.args(arguments);
        Ok(command)
    }

    /// What its end means.
    pub(super) fn count(self, output: &str, success: bool) -> Count {
        let counted = output.lines().filter_map(critest).next_back();
        match (self, counted) {
            (Self::Critest | Self::WholeCritest, Some(count)) if success == (count.failed == 0) => {
                count
            }
            (Self::Critest | Self::WholeCritest, _) => Count::failed(1),
            (Self::Doc, _) if output.lines().any(is_warning) => Count::failed(1),
            (_, _) if success => Count::passed(1),
            _ => Count::failed(1),
        }
    }
}

/// Whether a line begins what the compiler or clippy warns of.
fn is_warning(line: &str) -> bool {
    line.starts_with("warning: ")
}

/// Checks every rule file, dashboard and scrape configuration of `deploy`.
fn rules() -> Result<Command> {
    let mut check = run::command(workspace::tools_bin().join("check-rules"));
    for folder in ["deploy/prometheus", "deploy/grafana"] {
        let folder = workspace::root().join(folder);
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_file() {
                check.arg(path);
            }
        }
    }
    Ok(check)
}

/// The counts of a line such as `critest: 27 as expected, 0 not`.
fn critest(line: &str) -> Option<Count> {
    let (passed, rest) = line.strip_prefix(CRITEST)?.split_once(" as expected, ")?;
    Some(Count {
        passed: passed.parse().ok()?,
        failed: rest.strip_suffix(" not")?.parse().ok()?,
        unsteady: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_decides_and_must_agree_with_the_counts() {
        assert_eq!(Check::Fmt.count("", true), Count::passed(1));
        assert_eq!(Check::Deny.count("", false), Count::failed(1));
        let warned = "warning: unused import\ntest result: ok\n";
        assert_eq!(Check::Doc.count(warned, true), Count::failed(1));
        assert_eq!(
            Check::Doc.count("test result: ok\n", true),
            Count::passed(1)
        );
        let line = "critest: 28 specifications\ncritest: 27 as expected, 0 not\n";
        assert_eq!(Check::Critest.count(line, true), Count::passed(27));
        assert_eq!(Check::Critest.count(line, false), Count::failed(1));
        assert_eq!(Check::Critest.count("", true), Count::failed(1));
    }
}
