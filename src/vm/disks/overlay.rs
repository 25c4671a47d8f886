//! The root disk, which belongs to the sandbox: a qcow2 overlay on the image, or a copy of it.
//!
//! Invariant: the disk is made of the pinned image as its pod requests and is complete when it has
//! its name. Disk and pin follow the text by which the pod names its image: while that is the same,
//! a new container boots the same disk. A disk gives way to that of another image only when all that the
//! request needs is there: the other image is pinned, its disk is made beside the old one, and every
//! device and file is taken ([`replace`](super::replace)).
//! Failure: [`Error::Disk`] with what `qemu-img` reported; nothing is left then, and an old disk is as
//! it was.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;

use podspec::{Annotations, FastDeploy, SandboxId};

use super::replace::{beside, unfinished};
use crate::disk::qemu_img::{Base, Failed};
use crate::files;
use crate::images::{self, Digest, Image, Locator, Pinned, Reference};
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::vm::error::{Error, Result};
use crate::vm::model::{Container, ImageSpec};
use crate::vm::service::Containers;
use crate::vm::settings::UnknownImage;

/// The image that a container boots.
#[derive(Debug)]
pub(in crate::vm) struct Choice {
    pub(in crate::vm) image: Image,
    /// How the pod names it.
    pub(super) text: String,
    /// Of which image the sandbox's disk was made, if that is another one, by another name.
    pub(super) replaces: Option<Digest>,
    /// What the name means today, where that is another image.
    meant_today: Option<Digest>,
}

impl Choice {
    /// What the pod's author should know.
    pub(in crate::vm) fn finding(&self) -> Option<String> {
        let today = self.meant_today?;
        let own = self.image.digest;
        let name: String = self.text.chars().take(100).collect();
        Some(format!(
            "the image name {name} means {today} today; the machine keeps its root disk of {own}: for \
             the other image, make a new pod"
        ))
    }
}

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

    /// The image that is meant, if it is here. The name that the sandbox's disk was made by means
    /// the image of that disk, whatever it means to others today.
    pub(in crate::vm) fn known(&self, sandbox: &SandboxId, spec: &ImageSpec) -> Option<Digest> {
        let images = &self.parts.images;
        let pinned = images.pinned(sandbox.as_str());
        if let Some(pinned) = pinned.as_ref().filter(|p| self.is_same(sandbox, p, spec)) {
            return Some(pinned.digest);
        }
        if let Some(image) = images.find(&spec.image) {
            return Some(image.digest);
        }
        // An image that was removed serves on under the disk that uses it as its base, and under no
        // other name.
        let pinned = pinned.map(|image| image.digest);
        if let Some(digest) = pinned.filter(|digest| named_digest(&spec.image) == Some(*digest)) {
            return Some(digest);
        }
        let by_name = images.find(&spec.user_specified_image)?;
        (self.settings.unknown_image == UnknownImage::Pull).then_some(by_name.digest)
    }

    /// Whether the pod names its image as it did when the image was pinned for the sandbox. Daemons
    /// before this one recorded no name: then a container of that image says it, and without one
    /// nothing says that the name is another.
    fn is_same(&self, sandbox: &SandboxId, pinned: &Pinned, spec: &ImageSpec) -> bool {
        if let Some(text) = &pinned.text {
            return text == spec.text();
        }
        let digest = pinned.digest.to_string();
        let mut rows = self.of_sandbox(sandbox);
        rows.retain(|row| row.spec.image_digest == digest);
        let newest = rows.iter().max_by_key(|row| row.created_at);
        newest.is_none_or(|row| row.spec.config.image.text() == spec.text())
    }

    /// The image that a new container of this sandbox boots. Nothing that exists is changed but
    /// the recorded name of the image.
    pub(super) async fn choose_image(
        &self,
        sandbox: &SandboxId,
        spec: &ImageSpec,
    ) -> Result<Choice> {
        let images = &self.parts.images;
        let absent = || images::Error::Absent {
            reference: spec.image.chars().take(256).collect(),
        };
        let text = spec.text().to_owned();
        let wanted = self.known(sandbox, spec).ok_or_else(absent)?;
        let reference = wanted.to_string();
        let pinned = images.pinned(sandbox.as_str()).map(|image| image.digest);
        let replaces = pinned.filter(|pinned| *pinned != wanted);
        if replaces.is_some() {
            return Ok(Choice {
                image: images.find(&reference).ok_or_else(absent)?,
                text,
                replaces,
                meant_today: None,
            });
        }
        let today = images.find(&spec.image);
        let today = today.or_else(|| images.find(&spec.user_specified_image));
        let image = images.pin_as(sandbox.as_str(), &reference, &text).await?;
        Ok(Choice {
            meant_today: today
                .map(|today| today.digest)
                .filter(|d| *d != image.digest),
            image,
            text,
            replaces: None,
        })
    }

    /// Makes the disk unless it is there. One that is to replace another is made beside it, until
    /// [`Self::replace_image`].
    pub(super) async fn ensure_root_disk(
        &self,
        sandbox: &Sandbox,
        row: &Container,
        choice: &Choice,
    ) -> Result<()> {
        let image = &choice.image;
        let disk = self.paths.root_disk(&row.sandbox);
        let is_there = tokio::fs::try_exists(&disk).await;
        let is_there = is_there.map_err(files::failed("look for", &disk))?;
        if is_there && choice.replaces.is_none() {
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
        let unfinished = unfinished(&disk);
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
                let stop = self.stops.watch(&row.sandbox);
                tokio::select! {
                    made = qemu_img.copy(&unfinished, base, size, |_| {}) => made,
                    () = stop.requested() => return Err(Error::CopyCancelled(row.sandbox.clone())),
                }
            }
        };
        made.map_err(|Failed { path, reason }| Error::Disk { path, reason })?;
        let name = match choice.replaces {
            Some(_) => beside(&disk, image.digest),
            None => disk,
        };
        let named = tokio::fs::rename(&unfinished, &name).await;
        Ok(named.map_err(files::failed("name", &name))?)
    }

    /// Removes the disk and lets the image go; success when there is none.
    pub(in crate::vm) async fn remove_root_disk(&self, sandbox: &SandboxId) -> Result<()> {
        let directory = self.paths.pod(sandbox);
        match tokio::fs::remove_dir_all(&directory).await {
            Err(e) if e.kind() != ErrorKind::NotFound => {
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
