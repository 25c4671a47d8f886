//! Builds the guest images of the examples and tests: a disk that boots by BIOS from its own boot
//! sector, and one that UEFI alone boots, made from distribution packages only.
//!
//! Invariant: no loop device, no root; a finished image appears by one rename.
//! Failure: names the step; the previous image stays in place.

pub(crate) mod agent;
mod client;
pub(crate) mod debian;
mod disk;
mod initramfs;
mod kernel;
mod modules;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub(crate) use kernel::Flavour;

use crate::stamp::Stamp;
use crate::{packages, pod_images, workspace};

/// Raised when the way of building changes in a manner that the stamp cannot see.
const RECIPE: &str = "10";

/// Builds the image with this kernel unless it is there and made from the same inputs. Returns whether
/// it was built.
pub(crate) fn ensure(flavour: Flavour) -> Result<bool> {
    let work = workspace::target().join("guest");
    let (work, image) = match flavour {
        Flavour::Cloud => (work, workspace::guest_image()),
        Flavour::Generic => (work.join("generic"), workspace::generic_image()),
    };
    let sources = workspace::root().join("xtask/guest");
    fs::create_dir_all(&work).with_context(|| format!("create {}", work.display()))?;
    let agent = agent::build().context("build vmlet-guest")?;
    let stamp = inputs(&work, &sources, &agent)?;
    let mut images = vec![image];
    if flavour == Flavour::Cloud {
        images.push(workspace::uefi_image());
    }
    if stamp.is_fresh(&images) {
        return Ok(false);
    }
    build(&work, &sources, (&agent, flavour), &images).context("build the guest image")?;
    stamp.write()?;
    Ok(true)
}

fn inputs(work: &Path, sources: &Path, agent: &Path) -> Result<Stamp> {
    let mut stamp = Stamp::new(work.join("hello.stamp"))
        .value("recipe", RECIPE)
        .folder(sources)?
        .file(agent)?
        .file(&pod_images::pgrep())?;
    for (name, version) in packages::installed(&[
        "busybox-static",
        "qemu-guest-agent",
        "syslinux",
        "systemd-boot-efi",
    ])? {
        stamp = stamp.value(&name, &version);
    }
    Ok(stamp)
}

fn build(
    work: &Path,
    sources: &Path,
    (agent, flavour): (&Path, Flavour),
    images: &[PathBuf],
) -> Result<()> {
    let kernel = kernel::fetch(work, flavour).context("kernel package")?;
    let client = client::fetch(work).context("DHCPv6 client")?;
    let further = [
        ("bin/vmlet-guest", agent.to_owned()),
        ("bin/pgrep", pod_images::pgrep()),
    ];
    let programs = [client.as_slice(), &further].concat();
    let initramfs = initramfs::build(work, sources, &kernel, &programs).context("initramfs")?;
    for (image, build) in images.iter().zip([disk::build, disk::build_for_uefi]) {
        let finished = build(work, sources, &kernel.image, &initramfs).context("disk")?;
        fs::rename(&finished, image).with_context(|| format!("rename to {}", image.display()))?;
    }
    // A hundred megabytes that are made again with the next image.
    for folder in ["packages", "kernel", "client", "initramfs"] {
        fs::remove_dir_all(work.join(folder)).with_context(|| format!("remove {folder}"))?;
    }
    Ok(())
}

/// Makes `path` an empty folder.
pub(crate) fn fresh_folder(path: PathBuf) -> Result<PathBuf> {
    if path.exists() {
        fs::remove_dir_all(&path).with_context(|| format!("empty {}", path.display()))?;
    }
    fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
    Ok(path)
}
