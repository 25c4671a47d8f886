//! Builds the image of Debian 12 for tests: cloud-init, systemd, the cloud kernel and the QEMU
//! guest agent as Debian delivers them.
//!
//! Invariant: only distribution packages and the files of `xtask/debian` are in it; it has no host
//! keys, no machine id and no password. mmdebstrap mounts in a namespace of its own; nothing else
//! mounts, and no loop device is needed. The finished image appears by one rename.
//! Failure: names the step; the previous image stays in place.

mod disk;
mod sources;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::fresh_folder;
use crate::stamp::Stamp;
use crate::{run, workspace};

/// Raised when the way of building changes in a manner that the stamp cannot see.
const RECIPE: &str = "2";

/// Documentation and translations, which no test reads.
const LEFT_OUT: [&str; 3] = ["doc", "locale", "man"];

/// Builds the image unless it is there and made from the same inputs. Returns whether it was built.
/// Newer packages alone are no reason to build it again.
pub(crate) fn ensure() -> Result<bool> {
    let work = workspace::target().join("debian");
    let files = workspace::root().join("xtask/debian");
    fs::create_dir_all(work.join("packages"))
        .with_context(|| format!("create {}", work.display()))?;
    let image = workspace::debian_image();
    let stamp = Stamp::new(work.join("debian.stamp"))
        .value("recipe", RECIPE)
        .folder(&files)?;
    if stamp.is_fresh(std::slice::from_ref(&image)) {
        return Ok(false);
    }
    build(&work, &files, &image).context("build the Debian image")?;
    stamp.write()?;
    Ok(true)
}

fn build(work: &Path, files: &Path, image: &Path) -> Result<()> {
    let root = work.join("root");
    remove(&root)?;
    install(work, files, &root).context("install packages")?;
    let scratch = fresh_folder(work.join("disk"))?;
    let finished = disk::build(&scratch, &root).context("disk")?;
    if let Some(folder) = image.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    fs::rename(&finished, image).with_context(|| format!("rename to {}", image.display()))?;
    remove(&root)?;
    remove(&scratch)
}

/// Installs the packages below `root`, in the order and with the scripts that Debian has for them.
fn install(work: &Path, files: &Path, root: &Path) -> Result<()> {
    let list = work.join("sources.list");
    fs::write(&list, sources::lines()?).with_context(|| format!("write {}", list.display()))?;
    let packages = files.join("packages");
    let packages = fs::read_to_string(&packages)
        .with_context(|| format!("read {}", packages.display()))?
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(",");
    println!("guest: installing Debian {}", sources::RELEASE);
    let mut install = run::root_command("unshare");
    install.args(["--mount", "--propagation", "private"]);
    install.args(["mmdebstrap", "--mode=root", "--variant=minbase"]);
    install.arg("--format=directory");
    install.arg(format!("--include={packages}"));
    install.arg("--aptopt=Acquire::Languages \"none\"");
    // The folder need not be readable for apt's own user.
    install.arg("--aptopt=APT::Sandbox::User \"root\"");
    install.arg("--dpkgopt=force-unsafe-io");
    for folder in LEFT_OUT {
        install.arg(format!("--dpkgopt=path-exclude=/usr/share/{folder}/*"));
    }
    // The program that makes further locales in the guest reads it.
    install.arg("--dpkgopt=path-include=/usr/share/locale/locale.alias");
    // Packages are kept for the next build.
    install.args(["--skip=essential/unlink", "--skip=download/empty"]);
    install.arg("--hook-directory").arg(files);
    install.arg(sources::RELEASE).arg(root).arg(&list);
    run::output(&mut install).map(drop)
}

/// Removes a folder that may have files of root.
fn remove(folder: &Path) -> Result<()> {
    let mut remove = run::root_command("rm");
    remove.args(["-rf", "--one-file-system"]).arg(folder);
    run::output(&mut remove).map(drop)
}
