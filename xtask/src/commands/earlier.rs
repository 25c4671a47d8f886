//! `earlier`: builds the programs of an earlier version, for tests of upgrades and of versions beside each other.
//!
//! Invariant: the folder of programs has all of them, made of the pinned commit, or is not there. One process at a time
//! builds them.
//! Failure: git's message, also for a clone that lacks the commit, else cargo's.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use tar::Archive;

use crate::static_program::TARGET;
use crate::{run, workspace};

/// The version whose programs and whose state this one is to work with.
const COMMIT: &str = "9c108293d514df1a5791cb49838c934d2ff766aa";

/// Its packages, with the programs that they have.
const PROGRAMS: [(&str, &str); 8] = [
    ("vmlet", "vmlet"),
    ("tapmanager", "vmlet-tapmanager"),
    ("vmwrapper", "vmwrapper"),
    ("vmlet-virtiofsd", "vmlet-virtiofsd"),
    ("vmletctl", "vmletctl"),
    ("criproxy", "vmlet-criproxy"),
    ("vmlet-controller", "vmlet-controller"),
    ("vmlet-agent", "vmlet-agent"),
];

/// Builds the programs of an earlier version, for tests of upgrades and of versions beside each other.
#[derive(Debug, clap::Args)]
pub(crate) struct Earlier {}

impl Earlier {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let programs = ensure()?;
        println!(
            "earlier: programs of {COMMIT} are in {}",
            programs.display()
        );
        Ok(ExitCode::SUCCESS)
    }
}

/// Builds the programs, unless they are there; returns their folder.
pub(crate) fn ensure() -> Result<PathBuf> {
    fs::create_dir_all(folder())?;
    let lock = File::create(folder().join("lock"))?;
    lock.lock()
        .context("lock the folder of the earlier version")?;
    let programs = folder().join("bin");
    if !programs.exists() {
        make(&programs).with_context(|| format!("build the programs of {COMMIT}"))?;
    }
    // 2 GiB that no later run needs.
    for left in [source(), target()] {
        if left.exists() {
            fs::remove_dir_all(left)?;
        }
    }
    Ok(programs)
}

/// Everything of that version, below a name of its own.
fn folder() -> PathBuf {
    workspace::target().join("earlier").join(COMMIT)
}

fn source() -> PathBuf {
    folder().join("source")
}

fn target() -> PathBuf {
    folder().join("target")
}

fn make(programs: &Path) -> Result<()> {
    unpack()?;
    let cargo = || {
        let mut cargo = workspace::cargo();
        cargo.current_dir(source());
        cargo.env("CARGO_TARGET_DIR", target());
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
    let dynamic = PROGRAMS.map(|(_, name)| target().join("debug").join(name));
    let agent = target().join(TARGET).join("guest/vmlet-guest");
    for program in dynamic.iter().chain([&agent]) {
        let name = program.file_name().context("a program has a name")?;
        fs::copy(program, made.join(name))
            .with_context(|| format!("copy {}", program.display()))?;
    }
    Ok(fs::rename(&made, programs)?)
}

/// Writes the sources of the commit into a folder.
fn unpack() -> Result<()> {
    run::check(git().args(["cat-file", "-e", COMMIT]))
        .context("the clone lacks the commit: git fetch --unshallow")?;
    let archive = folder().join("source.tar");
    let mut git = git();
    git.args(["archive", "--format=tar", "--output"])
        .arg(&archive);
    run::check(git.arg(COMMIT))?;
    Archive::new(File::open(&archive)?).unpack(source())?;
    Ok(fs::remove_file(&archive)?)
}

fn git() -> Command {
    let mut git = run::command("git");
    git.current_dir(workspace::root());
    git
}

fn dynamic(cargo: &mut Command) -> &mut Command {
    cargo.args(PROGRAMS.iter().flat_map(|(package, _)| ["-p", package]));
    cargo.args(["--features", "vmlet/otel"])
}

fn guest_agent(cargo: &mut Command) -> &mut Command {
    let flags = format!("target.{TARGET}.rustflags=[\"-Ctarget-feature=+crt-static\"]");
    cargo.args(["-p", "vmlet-guest", "--profile", "guest"]);
    cargo.args(["--target", TARGET, "--config", &flags])
}
