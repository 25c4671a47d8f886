//! The root disk, which belongs to the sandbox: a qcow2 overlay on the image, or a copy of it.
//!
//! Invariant: the disk is made of the pinned image as its pod requests and is complete when it has
//! its name; a new container of the same image boots the same disk.
//! Failure: [`Error::Disk`] with what `qemu-img` reported; nothing is left then.

use std::os::unix::fs::PermissionsExt;

use podspec::{Annotations, FastDeploy, SandboxId};

use crate::disk::qemu_img::{Base, Failed};
use crate::files;
use crate::images::{self, Digest, Image, Locator, Reference};
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::vm::error::{Error, Result};
use crate::vm::model::{Container, ImageSpec};
use crate::vm::service::Containers;
use crate::vm::settings::UnknownImage;

impl<P: Platform> Containers<P> {
    /// Brings an image by the name in the pod, when the id that kubelet gave is not one of ours:
    /// for a pod that only its RuntimeClass sends here, kubelet asked another runtime about the
    /// image. A pull ends with its request, and no lock is held.
    pub(in crate::vm) async fn bring_image(
        &self,
        sandbox: &Sandbox,
        image: &ImageSpec,
    ) -> Result<()> {
        let images = &self.parts.images;
        let allowed = self.settings.unknown_image == UnknownImage::Pull;
        let name = &image.user_specified_image;
        if allowed && !name.is_empty() && self.known(&sandbox.id, image).is_none() {
            tracing::info!(sandbox = %sandbox.id, "image ID unknown: image pulled by its name");
            let locator = Locator::of_pod(name, &sandbox.config.annotations)?;
            images.pull(locator).await?;
        }
        Ok(())
    }

    /// The image that is meant, if it is here.
    pub(in crate::vm) fn known(&self, sandbox: &SandboxId, spec: &ImageSpec) -> Option<Digest> {
        let images = &self.parts.images;
        if let Some(image) = images.find(&spec.image) {
            return Some(image.digest);
        }
        // An image that was removed serves on under the disk that uses it as its base, and under no
        // other name.
        let pinned = images.pinned(sandbox.as_str()).map(|image| image.digest);
        if let Some(digest) = pinned.filter(|digest| named_digest(&spec.image) == Some(*digest)) {
            return Some(digest);
        }
        let by_name = images.find(&spec.user_specified_image)?;
        (self.settings.unknown_image == UnknownImage::Pull).then_some(by_name.digest)
    }

    /// The image that a new container of this sandbox boots, pinned for it.
    pub(super) async fn wanted_image(
        &self,
        sandbox: &SandboxId,
        spec: &ImageSpec,
    ) -> Result<Image> {
        let images = &self.parts.images;
        let pinned = images.pinned(sandbox.as_str()).map(|image| image.digest);
        let wanted = self.known(sandbox, spec);
        let wanted = wanted.ok_or_else(|| images::Error::Absent {
            reference: spec.image.chars().take(256).collect(),
        })?;
        if pinned != Some(wanted) {
            // Another image was requested: the guest's state on the old one is removed.
            self.remove_root_disk(sandbox).await?;
        }
        Ok(images.pin(sandbox.as_str(), &wanted.to_string()).await?)
    }

    /// Makes the disk unless it is there.
    pub(super) async fn ensure_root_disk(
        &self,
        sandbox: &Sandbox,
        row: &Container,
        image: &Image,
    ) -> Result<()> {
        let disk = self.paths.root_disk(&row.sandbox);
        if tokio::fs::try_exists(&disk)
            .await
            .map_err(files::failed("look for", &disk))?
        {
            return Ok(());
        }
        let directory = self.paths.pod(&row.sandbox);
        tokio::fs::create_dir_all(&directory)
            .await
            .map_err(files::failed("make", &directory))?;
        // QEMU's user may traverse it, no user may list it.
        let mode = std::fs::Permissions::from_mode(0o711);
        tokio::fs::set_permissions(&directory, mode)
            .await
            .map_err(files::failed("open", &directory))?;
        let unfinished = disk.with_extension("new");
        let size = row
            .spec
            .machine
            .root_size
            .unwrap_or(0)
            .max(image.virtual_size);
        let base = Base {
            path: &image.path,
            format: image.format,
        };
        let qemu_img = self.parts.disks.qemu_img();
        let made = match fast_deploy(sandbox)? {
            FastDeploy::Linked => qemu_img.overlay(&unfinished, base, size).await,
            FastDeploy::Direct => {
                let cancel = self.parts.blocks.cancellable(&row.id);
                tokio::select! {
                    made = qemu_img.copy(&unfinished, base, size, |_| {}) => made,
                    () = cancel.cancelled() => return Err(Error::CopyCancelled(row.sandbox.clone())),
                }
            }
        };
        made.map_err(|Failed { path, reason }| Error::Disk { path, reason })?;
        let named = tokio::fs::rename(&unfinished, &disk).await;
        Ok(named.map_err(files::failed("name", &disk))?)
    }

    /// Removes the disk and lets the image go; success when there is none.
    pub(in crate::vm) async fn remove_root_disk(&self, sandbox: &SandboxId) -> Result<()> {
        let directory = self.paths.pod(sandbox);
        match tokio::fs::remove_dir_all(&directory).await {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(files::failed("remove", &directory)(e).into());
            }
            _ => {}
        }
        self.parts.disks.qemu_img().forget(&directory).await?;
        Ok(self.parts.images.unpin(sandbox.as_str()).await?)
    }
}

/// How the root disk of a pod is made, for as long as the pod exists.
pub(in crate::vm) fn fast_deploy(sandbox: &Sandbox) -> Result<FastDeploy> {
    Ok(Annotations::new(&sandbox.config.annotations).fast_deploy()?)
}

/// The digest that a reference spells out.
fn named_digest(reference: &str) -> Option<Digest> {
    match Reference::parse(reference).ok()? {
        Reference::Id(digest) => Some(digest),
        Reference::Named(name) => name.digest(),
    }
}
