//! `tools`: the programs that only the tests need, built from pinned versions.
//!
//! Invariant: versions stand in `tests/tools/*/go.mod` and in this file, nowhere else; a second run with
//! the same versions builds nothing.
//! Failure: without Go, or without access to the module proxy, the error is Go's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::stamp::Stamp;
use crate::{run, workspace};

const CARGO_DENY_VERSION: &str = "0.20.2";

/// Builds crictl, critest and cargo-deny into target/tools/bin.
#[derive(Debug, clap::Args)]
pub(crate) struct Tools {
    /// Only this one.
    name: Option<Tool>,
}

/// A program that only the tests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tool {
    /// The command-line client of the Container Runtime Interface.
    Crictl,
    /// Its conformance suite.
    Critest,
    /// The checker of licences and sources of dependencies.
    CargoDeny,
}

impl Tools {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        match self.name {
            Some(tool) => ensure(&[tool])?,
            None => ensure(&[Tool::Crictl, Tool::Critest, Tool::CargoDeny])?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether the tools that are written in Go can be built here.
pub(crate) fn can_build() -> bool {
    run::capture(run::command("go").arg("version")).is_ok_and(|output| output.status.success())
}

/// The part that `test` and `up` share.
pub(crate) fn ensure(tools: &[Tool]) -> Result<()> {
    fs::create_dir_all(workspace::tools_bin()).context("create target/tools/bin")?;
    for tool in tools {
        let stamp = tool.inputs()?;
        let product = workspace::tools_bin().join(tool.name());
        let fresh = stamp.is_fresh(std::slice::from_ref(&product));
        if !fresh {
            println!("tools: building {}", tool.name());
            tool.build(&product)
                .with_context(|| format!("build {}", tool.name()))?;
            stamp.write()?;
        }
        println!(
            "tools: {} is {}",
            product.display(),
            if fresh { "up to date" } else { "built" }
        );
    }
    Ok(())
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Crictl => "crictl",
            Self::Critest => "critest",
            Self::CargoDeny => "cargo-deny",
        }
    }

    fn inputs(self) -> Result<Stamp> {
        let stamp = Stamp::new(workspace::target().join(format!("tools/{}.stamp", self.name())));
        match self {
            Self::Crictl | Self::Critest => stamp
                .file(&module().join("go.mod"))?
                .file(&module().join("go.sum")),
            Self::CargoDeny => Ok(stamp.value("version", CARGO_DENY_VERSION)),
        }
    }

    fn build(self, product: &Path) -> Result<()> {
        match self {
            Self::Crictl => go(&["build"], "crictl", product),
            Self::Critest => go(&["test", "-c"], "critest", product),
            Self::CargoDeny => {
                let mut cargo = workspace::cargo();
                cargo.args([
                    "install",
                    "--quiet",
                    "--locked",
                    "--version",
                    CARGO_DENY_VERSION,
                ]);
                cargo.arg("--root").arg(workspace::target().join("tools"));
                cargo
                    .arg("--target-dir")
                    .arg(workspace::target().join("tools/build"));
                run::check(cargo.arg("cargo-deny"))?;
                // Two hundred megabytes that nothing needs any more.
                fs::remove_dir_all(workspace::target().join("tools/build")).context("tidy up")
            }
        }
    }
}

/// The Go module that pins the Container Runtime Interface tools.
fn module() -> PathBuf {
    workspace::root().join("tests/tools/cri")
}

fn go(verb: &[&str], name: &str, product: &Path) -> Result<()> {
    let mut go = run::command("go");
    go.current_dir(module())
        .args(verb)
        .args(["-mod=mod", "-trimpath", "-ldflags", &ldflags()?]);
    go.arg("-o")
        .arg(product)
        .arg(format!("sigs.k8s.io/cri-tools/cmd/{name}"));
    run::check(&mut go)
}

/// Without symbols, and with the version that the program reports about itself.
fn ldflags() -> Result<String> {
    let path = module().join("go.mod");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let version = cri_tools_version(&text).context("go.mod does not require cri-tools")?;
    Ok(format!(
        "-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version={version}"
    ))
}

fn cri_tools_version(go_mod: &str) -> Option<&str> {
    let line = go_mod
        .lines()
        .find(|line| line.contains("sigs.k8s.io/cri-tools "))?;
    line.split_whitespace()
        .find_map(|word| word.strip_prefix('v'))
        .filter(|version| version.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_of_the_require_line() {
        let text = "module x\n\ngo 1.26.2\n\nrequire sigs.k8s.io/cri-tools v1.36.0\n";
        assert_eq!(cri_tools_version(text), Some("1.36.0"));
        assert_eq!(cri_tools_version("module x\n"), None);
    }
}
