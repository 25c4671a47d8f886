//! `fuzz`: feeds the checks of `tests/fuzz` with inputs that a fuzzer makes up.
//!
//! Invariant: one target after the other, each for the same time. New inputs that reach new code
//! are in `target/fuzz/corpus`; those in `fuzz/corpus` stay as they are.
//! Failure: exit code 1 when an input fails its check; the input is in `fuzz/artifacts`.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use super::tools::{self, Tool};
use crate::{run, workspace};

/// Fuzzes what reads the bytes of clients and guests. Needs a nightly compiler.
#[derive(Debug, clap::Args)]
pub(crate) struct Fuzz {
    /// Targets [default: all].
    targets: Vec<String>,
    /// Minutes for each target.
    #[arg(long, default_value_t = 5)]
    minutes: u64,
}

impl Fuzz {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        tools::ensure(&[Tool::CargoFuzz])?;
        let known = targets()?;
        for target in &self.targets {
            ensure!(
                known.contains(target),
                "the targets are {}",
                known.join(", ")
            );
        }
        let targets = if self.targets.is_empty() {
            &known
        } else {
            &self.targets
        };
        let mut is_well = true;
        for target in targets {
            is_well &= self.target(target).with_context(|| target.clone())?;
        }
        Ok(match is_well {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// Whether every input passes.
    fn target(&self, target: &str) -> Result<bool> {
        println!("fuzz: {target}, {} min", self.minutes);
        let folder = workspace::target().join("fuzz");
        let found = folder.join("corpus").join(target);
        fs::create_dir_all(&found).with_context(|| format!("create {}", found.display()))?;
        let seconds = self.minutes.saturating_mul(60);
        let mut command = run::command(workspace::tools_bin().join("cargo-fuzz"));
        command
            .current_dir(workspace::root().join("fuzz"))
            // rust-toolchain.toml names the compiler of everything else.
            .env("RUSTUP_TOOLCHAIN", "nightly")
            .args(["fuzz", "run", target, "--fuzz-dir", ".", "--target-dir"])
            .arg(folder.join("build"))
            // The first folder gets what is found.
            .arg(&found)
            .arg(format!("corpus/{target}"))
            .arg("--")
            .arg(format!("-max_total_time={seconds}"))
            .args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"]);
        let line = run::describe(&command);
        let status = command.status().with_context(|| format!("run {line}"))?;
        Ok(status.success())
    }
}

/// The targets of the repository, sorted.
fn targets() -> Result<Vec<String>> {
    let folder = workspace::root().join("fuzz/targets");
    let entries = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
    let mut targets = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("list {}", folder.display()))?
            .path();
        targets.extend(
            path.file_stem()
                .map(|name| name.to_string_lossy().into_owned()),
        );
    }
    targets.sort();
    Ok(targets)
}
