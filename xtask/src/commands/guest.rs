//! `guest`: builds the guest images that the examples and tests boot.
//!
//! Invariant: a second run with the same inputs builds nothing.
//! Failure: names the step; see `image`.

use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::Result;

use crate::image::{self, Flavour};
use crate::{run, workspace};

/// Builds a guest image for the examples and tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Guest {
    /// Then boot the image in QEMU with its console on this terminal; Ctrl-A X quits.
    #[arg(long)]
    boot: bool,
    /// The small image with the kernel for all machines instead of that for virtual ones: it has 9p.
    #[arg(long, conflicts_with = "debian")]
    generic: bool,
    /// The image of Debian 12 with cloud-init and systemd instead of the small one.
    #[arg(long)]
    debian: bool,
}

impl Guest {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let (image, memory) = if self.debian {
            ensure_debian()?;
            (workspace::debian_image(), "1024")
        } else if self.generic {
            ensure_generic()?;
            (workspace::generic_image(), "256")
        } else {
            ensure()?;
            (workspace::guest_image(), "128")
        };
        if self.boot {
            boot(&image, memory)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The part that `demo` and `test` share.
pub(crate) fn ensure() -> Result<()> {
    let built = image::ensure(Flavour::Cloud)?;
    report(&workspace::guest_image(), built);
    Ok(())
}

/// The same with another kernel, which only some tests need.
pub(crate) fn ensure_generic() -> Result<()> {
    let built = image::ensure(Flavour::Generic)?;
    report(&workspace::generic_image(), built);
    Ok(())
}

/// The image of Debian, which only some tests need.
pub(crate) fn ensure_debian() -> Result<()> {
    let built = image::debian::ensure()?;
    report(&workspace::debian_image(), built);
    Ok(())
}

fn report(image: &Path, built: bool) {
    let state = if built { "built" } else { "up to date" };
    println!("guest: {} is {state}", image.display());
}

fn boot(image: &Path, memory: &str) -> Result<()> {
    let drive = format!("file={},format=qcow2,if=virtio", image.display());
    let mut qemu = run::command("qemu-system-x86_64");
    qemu.args([
        "-machine",
        "q35,accel=tcg",
        "-m",
        memory,
        "-nographic",
        "-no-reboot",
        "-snapshot",
    ]);
    qemu.args(["-drive", &drive, "-nic", "user,model=virtio-net-pci"]);
    run::check(qemu.stdin(Stdio::inherit()))
}
