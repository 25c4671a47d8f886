//! Programs that need nothing of the machine that runs them but a kernel: no libraries, no loader.
//!
//! Invariant: they are built apart from all others, so that a build of the workspace stays up to date; the folder
//! of the build is not in them.
//! Failure: cargo's.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{reproducible, run, workspace};

/// The target of the build. Named, so that the flags below do not apply to build scripts.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A program of the workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StaticProgram {
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
    /// The profile of cargo.
    pub(crate) profile: &'static str,
}

impl StaticProgram {
    /// Where the program is.
    pub(crate) fn path(&self) -> PathBuf {
        // The one profile whose folder has another name.
        let folder = match self.profile {
            "dev" => "debug",
            profile => profile,
        };
        let folder = workspace::target().join(TARGET).join(folder);
        folder.join(self.name)
    }

    /// Builds the program, unless it is up to date.
    pub(crate) fn build(&self) -> Result<PathBuf> {
        let mut cargo = workspace::cargo();
        cargo.args(["build", "--quiet", "-p", self.package]);
        cargo.args(["--bin", self.name, "--profile", self.profile]);
        cargo.args(["--target", TARGET]);
        reproducible::apply(&mut cargo, &["-Ctarget-feature=+crt-static"])?;
        run::check(&mut cargo).with_context(|| format!("build {}", self.name))?;
        Ok(self.path())
    }
}
