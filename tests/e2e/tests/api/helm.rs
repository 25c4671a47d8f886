//! The Helm chart, by Helm itself: what it renders, and what a release does in an API server.
//!
//! Invariant: the chart is the folder in `deploy/`, not changed.
//! Failure: Helm's own message, or the objects that differ.

mod hooks;
mod objects;
mod options;
mod release;
mod render;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use e2e::program;
use serde_json::Value;

/// A folder of `deploy/`, or that one.
fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(name)
}

/// Where `cargo xtask tools` puts programs.
fn tool(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let target = test.ancestors().nth(3);
    let target = target.context("a test lies in target/debug/deps")?;
    Ok(target.join("tools/bin").join(name))
}

/// Helm with these words; with nothing of the caller's own Helm.
fn helm(words: &[&str]) -> Result<Command> {
    let mut command = Command::new(tool("helm")?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HELM_") {
            command.env_remove(name);
        }
    }
    command.args(words);
    Ok(command)
}

fn text(output: Output, what: &dyn std::fmt::Debug) -> Result<String> {
    ensure!(output.status.success(), "{what:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// What the chart prints for a release in a namespace, with these further words.
fn template(namespace: &str, words: &[&str]) -> Result<Vec<Value>> {
    let chart = deploy("chart");
    let chart = chart.to_str().context("a path in UTF-8")?;
    let first = ["template", "vmlet", chart, "--namespace", namespace];
    let mut command = helm(&[&first[..], words].concat())?;
    objects::parse(&text(program::output(&mut command)?, &words)?)
}

/// Why the chart refuses these words.
fn refusal(words: &[&str]) -> Result<String> {
    let chart = deploy("chart");
    let chart = chart.to_str().context("a path in UTF-8")?;
    let first = ["template", "vmlet", chart, "--namespace", "vmlet-system"];
    let output = program::output(&mut helm(&[&first[..], words].concat())?)?;
    ensure!(!output.status.success(), "{words:?} is not refused");
    Ok(String::from_utf8(output.stderr)?)
}
