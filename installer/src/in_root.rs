//! Becomes a program of the node: `vmlet-installer in-root DIR PROGRAM …`.
//!
//! Invariant: the program sees the root file system of the node as its own, as after `chroot`, without
//! need of a program of that name in the container.
//! Failure: it returns only when the program cannot be executed.

use std::os::unix::fs::chroot;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

/// Where programs of a node are.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(crate) fn run(folder: &Path, command: &[String]) -> Result<ExitCode> {
    let Some((program, arguments)) = command.split_first() else {
        bail!("a program is needed");
    };
    chroot(folder).with_context(|| format!("failed to change the root to {}", folder.display()))?;
    std::env::set_current_dir("/").context("failed to enter the root of the node")?;
    let error = Command::new(program)
        .args(arguments)
        .env("PATH", PATH)
        // The root is the node's own: systemctl has to act as ever.
        .env("SYSTEMD_IGNORE_CHROOT", "1")
        .exec();
    Err(error).with_context(|| format!("failed to execute {program} of the node"))
}
