//! What a release was built with: other versions of it may give other bytes.
//!
//! Invariant: nothing of it depends on the machine but the versions of programs and libraries.
//! Failure: names the program that cannot be asked.

use anyhow::{Context, Result};
use serde::Serialize;

use super::source::{Commit, Version};
use crate::packages::{self, Installed};
use crate::{run, workspace};

/// Debian packages whose version is in what we build: compilers, packers, and libraries.
const PACKAGES: [&str; 9] = [
    "binutils",
    "dpkg",
    "gcc",
    "libc6-dev",
    "libcap-ng-dev",
    "liblzma5",
    "libseccomp-dev",
    "libvirt-dev",
    "zstd",
];

/// The build of a release.
#[derive(Debug, Serialize)]
pub(crate) struct Build {
    version: String,
    commit: String,
    /// `SOURCE_DATE_EPOCH`.
    time: u64,
    /// Whether programs have crash points, and are not for nodes.
    debug: bool,
    distribution: String,
    rustc: String,
    cc: String,
    packages: Installed,
}

impl Build {
    /// A build of this machine.
    pub(crate) fn read(version: &Version, commit: &Commit, debug: bool) -> Result<Self> {
        Ok(Self {
            version: version.to_string(),
            commit: commit.id.clone(),
            time: commit.time,
            debug,
            distribution: packages::distribution()?,
            rustc: first_line("rustc")?,
            cc: first_line("cc")?,
            packages: packages::installed(&PACKAGES)?,
        })
    }
}

fn first_line(program: &str) -> Result<String> {
    let mut command = run::command(program);
    let printed = run::output(command.arg("--version").current_dir(workspace::root()))?;
    let line = printed.lines().next();
    line.map(str::to_owned)
        .with_context(|| format!("{program} --version prints nothing"))
}
