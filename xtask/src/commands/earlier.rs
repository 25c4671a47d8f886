//! `earlier`: builds the programs of an earlier version, for tests of upgrades and of versions beside each other.
//!
//! Invariant: the folder of programs has all of them, made of the pinned commit, or is not there.
//! Failure: git's message where the clone lacks the commit, else cargo's.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use tar::Archive;

use super::build;
use crate::static_program::TARGET;
use crate::{run, workspace};

/// The version whose programs and whose state this one is to work with.
const COMMIT: &str = "9c108293d514df1a5791cb49838c934d2ff766aa";

/// The programs that it has.
const PROGRAMS: [&str; 8] = [
    "vmlet",
    "vmlet-tapmanager",
    "vmwrapper",
    "vmlet-virtiofsd",
    "vmletctl",
    "vmlet-criproxy",
    "vmlet-controller",
    "vmlet-agent",
];

/// Builds the programs of an earlier version, for tests of upgrades and of versions beside each other.
#[derive(Debug, clap::Args)]
pub(crate) struct Earlier {}

impl Earlier {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let programs = folder().join("bin");
        if !programs.exists() {
            make(&programs).with_context(|| format!("build the programs of {COMMIT}"))?;
        }
        println!(
            "earlier: programs of {COMMIT} are in {}",
            programs.display()
        );
        Ok(ExitCode::SUCCESS)
    }
}

/// Everything of that version, below a name of its own.
fn folder() -> PathBuf {
    workspace::target().join("earlier").join(COMMIT)
}

fn make(programs: &Path) -> Result<()> {
    let (source, built) = (folder().join("source"), folder().join("target"));
    unpack(&source)?;
    let cargo = || {
        let mut cargo = workspace::cargo();
        cargo.current_dir(&source).env("CARGO_TARGET_DIR", &built);
        // A checker of this version's sources has nothing to say about those.
        cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
        cargo.args(["build", "--quiet", "--locked"]);
        cargo
    };
    run::check(dynamic(&mut cargo()))?;
    run::check(guest_agent(&mut cargo()))?;

    let made = folder().join("bin.part");
    fs::create_dir_all(&made)?;
    let dynamic = PROGRAMS.map(|name| built.join("debug").join(name));
    let agent = built.join(TARGET).join("guest/vmlet-guest");
    for program in dynamic.iter().chain([&agent]) {
        let name = program.file_name().context("a program has a name")?;
        fs::copy(program, made.join(name))
            .with_context(|| format!("copy {}", program.display()))?;
    }
    fs::rename(&made, programs)?;
    // 2 GiB that no later run needs.
    fs::remove_dir_all(&built)?;
    Ok(fs::remove_dir_all(&source)?)
}

/// Writes the sources of the commit into a folder.
fn unpack(source: &Path) -> Result<()> {
    fs::create_dir_all(folder())?;
    let archive = folder().join("source.tar");
    let mut git = run::command("git");
    git.args(["archive", "--format=tar", "--output"])
        .arg(&archive);
    run::check(git.arg(COMMIT).current_dir(workspace::root()))
        .context("a clone without its history lacks the commit: git fetch --unshallow")?;
    Archive::new(File::open(&archive)?).unpack(source)?;
    Ok(fs::remove_file(&archive)?)
}

fn dynamic(cargo: &mut Command) -> &mut Command {
    cargo.args(build::PACKAGES.iter().flat_map(|name| ["-p", name]));
    cargo.args(["--features", "vmlet/otel"])
}

fn guest_agent(cargo: &mut Command) -> &mut Command {
    let flags = format!("target.{TARGET}.rustflags=[\"-Ctarget-feature=+crt-static\"]");
    cargo.args(["-p", "vmlet-guest", "--profile", "guest"]);
    cargo.args(["--target", TARGET, "--config", &flags])
}
