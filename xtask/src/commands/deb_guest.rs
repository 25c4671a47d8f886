//! `deb-guest`: the agent in guests as a Debian package.
//!
//! Invariant: the package has no maintainer scripts: a udev rule starts the service in a machine
//! that has the port. The finished package appears by one rename.
//! Failure: names the step; a former package stays in place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{image, run, workspace};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Files of the package that are in the repository, with their places.
const FILES: &[(&str, &str)] = &[
    (
        "deploy/guest/vmlet-guest.service",
        "lib/systemd/system/vmlet-guest.service",
    ),
    (
        "deploy/guest/60-vmlet-guest.rules",
        "lib/udev/rules.d/60-vmlet-guest.rules",
    ),
    ("LICENSE", "usr/share/doc/vmlet-guest/copyright"),
];

/// Builds the Debian package of vmlet-guest, the agent for guests.
#[derive(Debug, clap::Args)]
pub(crate) struct DebGuest {}

impl DebGuest {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let program = image::agent::build().context("build vmlet-guest")?;
        let package = build(&program)?;
        println!("deb-guest: {}", package.display());
        Ok(ExitCode::SUCCESS)
    }
}

fn build(program: &Path) -> Result<PathBuf> {
    let work = workspace::target().join("packages");
    let root = work.join("vmlet-guest");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    }
    install(program, &root.join("usr/sbin/vmlet-guest"), 0o755)?;
    for (file, place) in FILES {
        install(&workspace::root().join(file), &root.join(place), 0o644)?;
    }
    let size = fs::metadata(program)?.len().div_ceil(1024);
    let control = root.join("DEBIAN/control");
    fs::create_dir_all(root.join("DEBIAN")).context("create DEBIAN")?;
    fs::write(&control, description(size))
        .with_context(|| format!("write {}", control.display()))?;
    let package = work.join(format!("vmlet-guest_{VERSION}_amd64.deb"));
    let unfinished = package.with_extension("deb.new");
    let mut dpkg = run::command("dpkg-deb");
    dpkg.args(["--root-owner-group", "--build"])
        .arg(&root)
        .arg(&unfinished);
    run::check(dpkg.stdout(std::process::Stdio::null()))?;
    fs::rename(&unfinished, &package)
        .with_context(|| format!("rename to {}", package.display()))?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    Ok(package)
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(to, mode).with_context(|| format!("set the mode of {}", to.display()))
}

/// The control file; `size` is in KiB.
fn description(size: u64) -> String {
    format!(
        "Package: vmlet-guest\n\
         Version: {VERSION}\n\
         Architecture: amd64\n\
         Maintainer: The Vmlet authors <maintainers@vmlet.dev>\n\
         Installed-Size: {size}\n\
         Section: admin\n\
         Priority: optional\n\
         Description: agent of Vmlet for virtual machines\n \
         Runs the commands of kubectl exec and kubectl cp in this machine, with terminals\n \
         and standard input, and reports facts about it. It starts when the machine has the\n \
         virtio-serial port dev.vmlet.guest.0.\n"
    )
}
