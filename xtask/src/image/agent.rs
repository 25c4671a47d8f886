//! The agent in guests, as one static program.
//!
//! Invariant: it needs nothing of the guest but a kernel: no libraries, no loader. It is at most
//! [`LARGEST`], so that it fits on a seed disk.
//! Failure: cargo's, or the size.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::{run, workspace};

/// The target of the build. Named, so that the flags below do not apply to build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Most bytes of the program.
const LARGEST: u64 = 2 << 20;

/// Where the program is.
pub(crate) fn path() -> PathBuf {
    workspace::target().join(TARGET).join("guest/vmlet-guest")
}

/// Builds the program, unless it is up to date.
pub(crate) fn build() -> Result<PathBuf> {
    let flags = format!("target.{TARGET}.rustflags=[\"-Ctarget-feature=+crt-static\"]");
    let mut cargo = workspace::cargo();
    cargo.args([
        "build",
        "--quiet",
        "-p",
        "vmlet-guest",
        "--profile",
        "guest",
    ]);
    run::check(cargo.args(["--target", TARGET, "--config", &flags]))?;
    let program = path();
    let size = program
        .metadata()
        .with_context(|| format!("find {}", program.display()))?
        .len();
    ensure!(
        size <= LARGEST,
        "vmlet-guest has {size} bytes: more than {LARGEST}"
    );
    Ok(program)
}
