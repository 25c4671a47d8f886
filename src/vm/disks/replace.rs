//! Puts the disk of another image in the place of a sandbox's root disk.
//!
//! ```text
//! files beside each other               pin of the sandbox    the root disk is
//! root.qcow2       root.NEW.new         OLD                   root.qcow2
//! root.OLD.old     root.NEW.new         OLD                   root.OLD.old
//! root.OLD.old     root.NEW.new         NEW                   root.NEW.new
//! root.qcow2                            NEW                   root.qcow2
//! ```
//!
//! Invariant: a disk with the name `root.qcow2` is made of the pinned image, at every instant, so that no
//! machine boots a disk on the base of another one. While the pin changes, which is one write of the
//! database, each disk has the digest of its image in its name, so that the pin says which one is kept;
//! the other one is removed after that. The size of the disk that is kept counts before it has its name.
//! Failure: whatever ends in between, the daemon included, loses nothing: the next request for a container
//! of the sandbox, or reconciliation, leaves the disk that the pin says. Until then no container is
//! created.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use podspec::SandboxId;

use super::overlay::Choice;
use crate::files;
use crate::images::Digest;
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// What the names of all root disks of a sandbox begin with.
const BEGINNING: &str = "root.";

impl<P: Platform> Containers<P> {
    /// Keeps the image of a choice for the container, until it can take the place of another one.
    pub(super) async fn keep_choice(&self, row: &Container, choice: &Choice) -> Result<()> {
        if choice.replaces.is_some() {
            let image = choice.image.digest.to_string();
            self.parts.images.pin(row.id.as_str(), &image).await?;
        }
        Ok(())
    }

    /// Gives the sandbox the image of a choice, and the disk that was made of it, in the place of those
    /// that it has; nothing if it has none of another image. The caller has nothing left that could refuse
    /// the request.
    pub(super) async fn replace_image(&self, row: &Container, choice: &Choice) -> Result<()> {
        let Some(old) = choice.replaces else {
            return Ok(());
        };
        let sandbox = &row.sandbox;
        let disk = self.paths.root_disk(sandbox);
        faultpoint::point("vm.create.image");
        let has_old = rename(&disk, &aside(&disk, old)).await?;
        faultpoint::point("vm.replace.aside");
        let moved = self
            .parts
            .images
            .move_pin(row.id.as_str(), sandbox.as_str(), &choice.text);
        moved.await?;
        faultpoint::point("vm.replace.pinned");
        self.settle_root_disk(sandbox).await?;
        faultpoint::point("vm.replace.settled");
        if has_old {
            tracing::info!(%sandbox, image = choice.text, "root disk of another image removed");
        }
        Ok(())
    }

    /// Leaves the root disk that is made of the pinned image, if there is one, and no other; a disk that is
    /// not complete is removed. The caller holds the sandbox's lock.
    pub(in crate::vm) async fn settle_root_disk(&self, sandbox: &SandboxId) -> Result<()> {
        let disk = self.paths.root_disk(sandbox);
        let Some(pinned) = self.parts.images.pinned(sandbox.as_str()) else {
            // Nothing says which disk is kept: the image may come again.
            return remove(&unfinished(&disk)).await;
        };
        let directory = self.paths.pod(sandbox);
        let there = disks_in(&directory).await?;
        let new = beside(&disk, pinned.digest);
        let old = aside(&disk, pinned.digest);
        let candidates = [&disk, &new, &old];
        let kept = candidates.into_iter().find(|path| there.contains(path));
        for other in there.iter().filter(|path| Some(*path) != kept) {
            remove(other).await?;
        }
        let qemu_img = self.parts.disks.qemu_img();
        let Some(kept) = kept else {
            return Ok(qemu_img.forget(&directory).await?);
        };
        if *kept == new {
            qemu_img.count_replacement(&directory).await?;
        } else {
            qemu_img.count_kept(&directory).await?;
        }
        if *kept != disk {
            rename(kept, &disk).await?;
        }
        if *kept == old {
            tracing::info!(%sandbox, "root disk kept: its replacement was not completed");
        }
        Ok(())
    }
}

/// The name of a disk until it is complete.
pub(super) fn unfinished(disk: &Path) -> PathBuf {
    disk.with_extension("new")
}

/// The name of a complete disk of an image that is to replace another disk.
pub(super) fn beside(disk: &Path, image: Digest) -> PathBuf {
    disk.with_extension(format!("{}.new", image.hex()))
}

/// The name of a disk of an image that is being replaced.
pub(super) fn aside(disk: &Path, image: Digest) -> PathBuf {
    disk.with_extension(format!("{}.old", image.hex()))
}

/// The root disks in a directory, complete or not.
async fn disks_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = || files::failed("look through", directory);
    let mut entries = match tokio::fs::read_dir(directory).await {
        Err(e) if is_absent(&e) => return Ok(Vec::new()),
        entries => entries.map_err(failed())?,
    };
    let mut found = Vec::new();
    while let Some(entry) = entries.next_entry().await.map_err(failed())? {
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(BEGINNING.as_bytes())
        {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Gives a file another name; whether there is one.
async fn rename(file: &Path, name: &Path) -> Result<bool> {
    match tokio::fs::rename(file, name).await {
        Err(e) if is_absent(&e) => Ok(false),
        renamed => {
            renamed.map_err(files::failed("rename", file))?;
            Ok(true)
        }
    }
}

/// Removes a file; success when there is none.
async fn remove(file: &Path) -> Result<()> {
    match tokio::fs::remove_file(file).await {
        Err(e) if is_absent(&e) => Ok(()),
        removed => Ok(removed.map_err(files::failed("remove", file))?),
    }
}

/// The directory is made with the first disk.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
