//! `guest`: builds the guest image that the examples and tests boot.
//!
//! Invariant: a second run with the same inputs builds nothing.
//! Failure: names the step; see `image`.

use std::process::{ExitCode, Stdio};

use anyhow::Result;

use crate::{image, run, workspace};

/// Builds the guest image for the examples and tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Guest {
    /// Then boot the image in QEMU with its console on this terminal; Ctrl-A X quits.
    #[arg(long)]
    boot: bool,
}

impl Guest {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        ensure()?;
        if self.boot {
            boot()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The part that `demo` and `test` share.
pub(crate) fn ensure() -> Result<()> {
    let built = image::ensure()?;
    let state = if built { "built" } else { "up to date" };
    println!("guest: {} is {state}", workspace::guest_image().display());
    Ok(())
}

fn boot() -> Result<()> {
    let drive = format!(
        "file={},format=qcow2,if=virtio",
        workspace::guest_image().display()
    );
    let mut qemu = run::command("qemu-system-x86_64");
    qemu.args([
        "-machine",
        "q35,accel=tcg",
        "-m",
        "128",
        "-nographic",
        "-no-reboot",
        "-snapshot",
    ]);
    qemu.args(["-drive", &drive, "-nic", "user,model=virtio-net-pci"]);
    run::check(qemu.stdin(Stdio::inherit()))
}
