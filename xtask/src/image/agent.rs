//! The agent in guests, as one static program.
//!
//! Invariant: it needs nothing of the guest but a kernel: no libraries, no loader. It is at most
//! [`LARGEST`], so that it fits on a seed disk.
//! Failure: cargo's, or the size.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::static_program::StaticProgram;

const PROGRAM: StaticProgram = StaticProgram {
    package: "vmlet-guest",
    name: "vmlet-guest",
    profile: "guest",
};

/// Most bytes of the program.
const LARGEST: u64 = 2 << 20;

/// Where the program is.
pub(crate) fn path() -> PathBuf {
    PROGRAM.path()
}

/// Builds the program, unless it is up to date.
pub(crate) fn build() -> Result<PathBuf> {
    let program = PROGRAM.build()?;
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
