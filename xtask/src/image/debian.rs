//! Builds images of Debian: the guest of the tests (cloud-init, systemd, the cloud kernel and the
//! QEMU guest agent as Debian delivers them), and what `machine` boots.
//!
//! Invariant: only distribution packages and the files of the hook folders are in it; it has no
//! host keys, no machine id and no password. mmdebstrap mounts in a namespace of its own; nothing
//! else mounts, and no loop device is needed. The finished image appears by one rename.
//! Failure: names the step; the previous image stays in place.

mod disk;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::fresh_folder;
use crate::stamp::Stamp;
use crate::{run, workspace};

/// Raised when the way of building changes in a manner that the stamp cannot see.
const RECIPE: &str = "2";

const GUEST_DISK_BYTES: u64 = 3 << 30;

/// Documentation and translations, which no test reads.
const LEFT_OUT: [&str; 3] = ["doc", "locale", "man"];

/// What an image of Debian is made from.
#[derive(Debug)]
pub(crate) struct System {
    /// The release's name, such as `bookworm`.
    pub(crate) release: &'static str,
    /// Folders with hooks of mmdebstrap, in their order; the last one has the list of packages.
    pub(crate) hooks: Vec<PathBuf>,
    /// The size of the disk.
    pub(crate) bytes: u64,
    /// A folder for the packages, the stamp and everything temporary.
    pub(crate) work: PathBuf,
    /// The finished image.
    pub(crate) image: PathBuf,
}

/// Builds the guest's image unless it is there and made from the same inputs. Returns whether it was
/// built. Newer packages alone are no reason to build it again.
pub(crate) fn ensure() -> Result<bool> {
    let guest = System {
        release: "bookworm",
        hooks: vec![workspace::root().join("xtask/debian")],
        bytes: GUEST_DISK_BYTES,
        work: workspace::target().join("debian"),
        image: workspace::debian_image(),
    };
    guest.ensure()
}

impl System {
    /// Builds the image unless it is there and made from the same inputs. Returns whether it was
    /// built.
    pub(crate) fn ensure(&self) -> Result<bool> {
        let packages = self.work.join("packages");
        fs::create_dir_all(&packages).with_context(|| format!("create {}", packages.display()))?;
        let mut stamp = Stamp::new(self.stamp()).value("recipe", RECIPE);
        for folder in &self.hooks {
            stamp = stamp.folder(folder)?;
        }
        if stamp.is_fresh(std::slice::from_ref(&self.image)) {
            return Ok(false);
        }
        self.build()
            .with_context(|| format!("build the image of Debian {}", self.release))?;
        stamp.write()?;
        Ok(true)
    }

    /// The file that says what the image was made from.
    pub(crate) fn stamp(&self) -> PathBuf {
        self.work.join("debian.stamp")
    }

    fn build(&self) -> Result<()> {
        let root = self.work.join("root");
        remove(&root)?;
        self.install(&root).context("install packages")?;
        let scratch = fresh_folder(self.work.join("disk"))?;
        let finished = disk::build(&scratch, &root, self.bytes).context("disk")?;
        let image = &self.image;
        if let Some(folder) = image.parent() {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        fs::rename(&finished, image).with_context(|| format!("rename to {}", image.display()))?;
        remove(&root)?;
        remove(&scratch)
    }

    /// Installs the packages below `root`, in the order and with the scripts that Debian has for
    /// them.
    fn install(&self, root: &Path) -> Result<()> {
        let list = self.work.join("sources.list");
        fs::write(&list, sources::lines(self.release)?)
            .with_context(|| format!("write {}", list.display()))?;
        println!("image: installing Debian {}", self.release);
        let mut install = run::root_command("unshare");
        install.args(["--mount", "--propagation", "private"]);
        install.args(["mmdebstrap", "--mode=root", "--variant=minbase"]);
        install.arg("--format=directory");
        install.arg(format!("--include={}", self.packages()?));
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
        for folder in &self.hooks {
            install.arg("--hook-directory").arg(folder);
        }
        install.arg(self.release).arg(root).arg(&list);
        run::output(&mut install).map(drop)
    }

    fn packages(&self) -> Result<String> {
        let folder = self.hooks.last().context("no folder with hooks")?;
        let file = folder.join("packages");
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(","))
    }
}

/// Removes a folder that may have files of root.
fn remove(folder: &Path) -> Result<()> {
    let mut remove = run::root_command("rm");
    remove.args(["-rf", "--one-file-system"]).arg(folder);
    run::output(&mut remove).map(drop)
}
