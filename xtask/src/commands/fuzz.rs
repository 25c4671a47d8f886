//! `fuzz`: feeds the checks of `tests/fuzz` with inputs that a fuzzer makes up.
//!
//! Invariant: each target runs for the same time, a few at once. New inputs that reach new code are
//! in `target/fuzz/corpus`; those in `fuzz/corpus` stay as they are.
//! Failure: exit code 1 when an input fails its check; the input is in `fuzz/artifacts`, and what
//! the check reported in `target/fuzz/logs`.

mod figures;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use self::figures::Figures;
use super::tools::{self, Tool};
use crate::{run, workspace};

/// Where cargo puts the programs, below its build folder.
const PROGRAMS: &str = "x86_64-unknown-linux-gnu/release";

/// Fuzzes what reads the bytes of strangers. Needs a nightly compiler.
#[derive(Debug, clap::Args)]
pub(crate) struct Fuzz {
    /// Targets [default: all].
    targets: Vec<String>,
    /// Minutes for each target.
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// Number of targets that run at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Tool of the compiler that checks memory accesses meanwhile. Our own code forbids unsafe
    /// operations in nearly all crates, so that little is found for half of the speed.
    #[arg(long, value_enum, default_value_t = Sanitizer::None)]
    sanitizer: Sanitizer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sanitizer {
    Address,
    None,
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
        let targets = match self.targets.as_slice() {
            [] => known,
            some => some.to_vec(),
        };
        self.build(&targets)?;
        let figures = self.all(&targets)?;
        println!("\n{}", figures::table(&figures));
        let is_well = figures.iter().all(|figures| figures.crashes == 0);
        Ok(if is_well {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Builds the programs of all targets, or of the only one.
    fn build(&self, targets: &[String]) -> Result<()> {
        let mut command = run::command(workspace::tools_bin().join("cargo-fuzz"));
        command
            .current_dir(workspace::root().join("fuzz"))
            // rust-toolchain.toml names the compiler of everything else.
            .env("RUSTUP_TOOLCHAIN", "nightly")
            .args(["fuzz", "build", "--fuzz-dir", ".", "--target-dir"])
            .arg(self.folder("build"));
        if self.sanitizer == Sanitizer::None {
            command.args(["--sanitizer", "none"]);
        }
        if let [only] = targets {
            command.arg(only);
        }
        run::check(&mut command)
    }

    /// Runs the targets, in their order; the figures are in that order, too.
    fn all(&self, targets: &[String]) -> Result<Vec<Figures>> {
        let waiting: Mutex<VecDeque<&String>> = Mutex::new(targets.iter().collect());
        let next = || {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.pop_front()
        };
        let work = || {
            let run = |target: &String| self.target(target).with_context(|| target.clone());
            std::iter::from_fn(next).map(run).collect::<Vec<_>>()
        };
        let done: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            let done = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
            let done = done.map(|done| done.unwrap_or_else(|e| std::panic::resume_unwind(e)));
            done.flatten().collect()
        });
        let mut figures = done.into_iter().collect::<Result<Vec<_>>>()?;
        figures.sort_by_key(|figures| targets.iter().position(|t| *t == figures.target));
        Ok(figures)
    }

    fn target(&self, target: &str) -> Result<Figures> {
        println!("fuzz: {target}, {} min", self.minutes);
        let root = workspace::root().join("fuzz");
        let artifacts = root.join("artifacts").join(target);
        let found = self.folder("corpus").join(target);
        let logs = self.folder("logs");
        for folder in [&artifacts, &found, &logs] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let log = logs.join(format!("{target}.log"));
        let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let seconds = self.minutes.saturating_mul(60);
        let mut command = run::command(self.folder("build").join(PROGRAMS).join(target));
        command
            .current_dir(&root)
            .stdout(output.try_clone().context("share the log")?)
            .stderr(output)
            // The first folder gets what is found.
            .arg(&found)
            .arg(format!("corpus/{target}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(format!("-max_total_time={seconds}"))
            .args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"]);
        let line = run::describe(&command);
        let status = command.status().with_context(|| format!("run {line}"))?;
        let read = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
        let figures = Figures::read(target, &String::from_utf8_lossy(&read), status.success());
        if figures.crashes > 0 {
            let input = artifacts.display();
            let log = log.display();
            println!("fuzz: {target} failed: the input is in {input}, the report is {log}");
        }
        Ok(figures)
    }

    /// A folder of results. Programs that are checked differently have another build folder.
    fn folder(&self, name: &str) -> PathBuf {
        let folder = workspace::target().join("fuzz");
        match (name, self.sanitizer) {
            ("build", Sanitizer::Address) => folder.join("build-address"),
            _ => folder.join(name),
        }
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
