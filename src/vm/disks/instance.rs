//! Containers that boot from the disk of a virtual machine, or from none.
//!
//! Invariant: who has the disk owns the domain's UUID: no other container's domain is ever touched
//! by it. A container takes the disk at its creation, and gives it back when its domain no longer
//! exists.
//! Failure: [`Error::VmDisk`] and [`Error::DomainLives`] say what prevents it; nothing is
//! left then.

use std::path::PathBuf;

use libvirt::{Hypervisor, State};
use podspec::{Instance, Role, RootContent, SandboxId, VmUid};

use super::overlay::Choice;
use crate::images::{self, Format, Image};
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::vm::domain::{Disk, DiskDevice, DiskFormat, DiskSource};
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::{Container, ImageSpec};
use crate::vm::service::Containers;
use crate::vm::shares::below;
use crate::{block, disk};

/// What a new container boots from.
#[derive(Debug)]
pub(in crate::vm) enum Root {
    /// The sandbox's disk, made from this image.
    Image(Choice),
    /// The disk of a virtual machine, made from an image with this digest.
    Vm(String),
    /// A device or a file of a volume, to which this image is written if it is not there yet; as it
    /// is without one.
    Volume(Option<Choice>),
    /// It never boots; kubelet has pulled this image for it.
    Nothing(Choice),
    /// It never boots, and has no image.
    None,
}

impl Root {
    /// Digest of the image; empty without one.
    pub(in crate::vm) fn digest(&self) -> String {
        match (self, self.choice()) {
            (_, Some(choice)) => choice.image.digest.to_string(),
            (Self::Vm(digest), None) => digest.clone(),
            (_, None) => images::none().digest.to_string(),
        }
    }

    /// The image in the store that it is made from.
    pub(in crate::vm) const fn choice(&self) -> Option<&Choice> {
        match self {
            Self::Image(choice) | Self::Nothing(choice) => Some(choice),
            Self::Volume(choice) => choice.as_ref(),
            Self::Vm(_) | Self::None => None,
        }
    }

    /// The image that is written to a device or a file.
    const fn written(&self) -> Option<&Image> {
        match self {
            Self::Volume(Some(choice)) => Some(&choice.image),
            _ => None,
        }
    }
}

impl<P: Platform> Containers<P> {
    /// What a new container of the sandbox boots from, checked as far as it is there. What an earlier
    /// request left of a replacement is settled.
    pub(in crate::vm) async fn wanted_root(
        &self,
        sandbox: &SandboxId,
        instance: &Instance,
        image: &ImageSpec,
        has_root: bool,
    ) -> Result<Root> {
        self.settle_root_disk(sandbox).await?;
        match instance.role {
            Role::Machine => {}
            Role::Provision => {
                return Ok(Root::Nothing(self.choose_image(sandbox, image).await?));
            }
            Role::BackupTarget => return Ok(Root::None),
        }
        if has_root {
            if instance.vm.is_some() {
                return Err(block::Error::TwoRoots.into());
            }
            let is_none = [&image.image, &image.user_specified_image];
            if is_none.into_iter().any(|name| images::is_none(name)) {
                return Ok(Root::Volume(None));
            }
            let images = &self.parts.images;
            if images.pinned(sandbox.as_str()).is_none() {
                // The content of a volume outlives an image whose file was lost.
                images.unpin(sandbox.as_str()).await?;
            }
            let image = self.choose_image(sandbox, image).await?;
            return Ok(Root::Volume(Some(image)));
        }
        let Some(vm) = instance.vm else {
            return Ok(Root::Image(self.choose_image(sandbox, image).await?));
        };
        let names = [image.image.as_str(), image.user_specified_image.as_str()];
        let disks = &self.parts.disks;
        let digest = disks.usable(vm, &names)?.digest.clone();
        Ok(Root::Vm(digest))
    }

    /// Takes what a container has, and makes what is not there yet. Of the disks that are there,
    /// nothing is removed and no content is written over: what is left of the request may fail.
    pub(in crate::vm) async fn ensure_root(
        &self,
        sandbox: &Sandbox,
        row: &Container,
        root: &Root,
    ) -> Result<()> {
        if let Some(choice) = root.choice() {
            self.keep_choice(row, choice).await?;
        }
        self.take_blocks(row).await?;
        self.prepare_file_disks(row, root.written()).await?;
        match (root, row.vm()) {
            (Root::Image(choice), _) => self.ensure_root_disk(sandbox, row, choice).await,
            (Root::Vm(_), Some(vm)) => self.take_disk(row, vm).await,
            (Root::Vm(_) | Root::Nothing(_) | Root::Volume(_) | Root::None, _) => Ok(()),
        }
    }

    /// Gives the root disk its content, which may cost the one that it had: only when nothing else can
    /// refuse the request any more. Returns what the pod's author should know of it.
    pub(in crate::vm) async fn settle_root(
        &self,
        row: &Container,
        root: &Root,
        content: RootContent,
    ) -> Result<Option<String>> {
        let found = self
            .prepare_root_block(row, root.written(), content)
            .await?;
        if let Some(choice) = root.choice() {
            self.replace_image(row, choice).await?;
        }
        Ok(found)
    }

    async fn take_disk(&self, row: &Container, vm: VmUid) -> Result<()> {
        let disks = &self.parts.disks;
        if let Some(holder) = disks.get(vm).and_then(|disk| disk.holder.clone()) {
            self.finish_end(&holder).await?;
        }
        let _turn = self.disk_lock(vm).await;
        match disks.get(vm).and_then(|disk| disk.holder.clone()) {
            // A save that was cut short, or memory that was used up.
            None => {
                disks.settle_memory(vm).await?;
            }
            Some(holder) if holder != row.id => {
                return Err(disk::Error::InUse { vm, holder }.into());
            }
            Some(_) => {}
        }
        self.check_alone(row, vm).await?;
        disks.take(vm, &row.id).await?;
        // A daemon before this one may have ended between the copy of it and the record of that.
        disks.settle_promotion(vm).await?;
        // The machine before this one may have ended while it copied its image.
        if let Err(error) = disks.settle_pull(vm).await {
            // It shows the right content with its image, which its record names.
            let error = crate::one_line(&error);
            tracing::warn!(%vm, error, "pulled disk not settled yet");
        }
        // As may the machine before this one, while a snapshot was taken.
        disks.settle_change(vm).await?;
        disks.prepare_layers(vm).await?;
        self.check_disk(row)?;
        let size = row.spec.machine.root_size.unwrap_or_default();
        Ok(disks.grow(vm, size).await?)
    }

    /// Refuses when a domain of ours still runs on the disk, with a row or without.
    async fn check_alone(&self, row: &Container, vm: VmUid) -> Result<()> {
        let domains = self.parts.hypervisor.list().await;
        let name = vm.to_string();
        let other = domains.map_err(hypervisor("list"))?.into_iter().find(|d| {
            let same = d.vm.as_ref() == Some(&name) || d.uuid == row.domain();
            same && d.state == State::Active && d.container != row.id.as_str()
        });
        match other {
            Some(domain) => Err(Error::DomainLives {
                vm,
                name: domain.name,
            }),
            None => Ok(()),
        }
    }

    /// Refuses a start without the disk, or one that does not go with the memory beside it.
    pub(in crate::vm) fn check_disk(&self, row: &Container) -> Result<()> {
        let Some(vm) = row.vm() else {
            return Ok(());
        };
        let disk = self.parts.disks.known(vm)?;
        match &disk.holder {
            Some(holder) if *holder == row.id => {}
            Some(holder) => {
                let holder = holder.clone();
                return Err(disk::Error::InUse { vm, holder }.into());
            }
            None => return Err(disk::Error::Missing(vm).into()),
        }
        match (row.spec.instance.restore, disk.has_memory()) {
            (true, false) => Err(disk::Error::NoMemory(vm).into()),
            (false, true) => Err(disk::Error::Memory(vm).into()),
            _ => Ok(()),
        }
    }

    /// Gives back the disk and the devices that a container has, and removes its seed; its domain
    /// no longer exists.
    pub(in crate::vm) async fn give_disk_back(&self, row: &Container) -> Result<()> {
        self.parts.blocks.give_back(&row.id).await?;
        if let Some(vm) = row.vm() {
            let disks = &self.parts.disks;
            if disks.is_held_by(vm, &row.id) {
                // The guest continued from it, if it did, and that is over.
                disks.settle_used_memory(vm).await?;
                self.remove_machine_seed(vm).await?;
            }
            disks.give_back(vm, &row.id).await?;
        }
        self.remove_seed(row).await
    }

    /// Whether the container still has a disk.
    pub(super) fn has_disk(&self, row: &Container) -> bool {
        row.vm()
            .is_some_and(|vm| self.parts.disks.is_held_by(vm, &row.id))
    }

    /// Whether the container still has a disk or a device.
    pub(in crate::vm) fn has_any_disk(&self, row: &Container) -> bool {
        self.has_disk(row) || self.parts.blocks.is_holder(&row.id)
    }

    /// Whether the domain of that UUID is this container's, if there is one.
    pub(in crate::vm) fn owns_domain(&self, row: &Container) -> bool {
        row.boots() && (row.vm().is_none() || self.has_disk(row))
    }

    /// The file that the machine boots from.
    pub(in crate::vm) fn root_disk(&self, row: &Container) -> PathBuf {
        if let Some(disk) = row.root_block() {
            return self.parts.blocks.node(disk.device);
        }
        if let Some(disk) = row.root_file() {
            return below(&self.settings.shares.root, &disk.directory).join(&disk.file);
        }
        match row.vm() {
            Some(vm) => self.parts.disks.file(vm),
            None => self.paths.root_disk(&row.sandbox),
        }
    }

    /// The files that the node has for the disk that the machine boots from.
    pub(in crate::vm) fn root_files(&self, row: &Container) -> Vec<PathBuf> {
        let file = self.root_disk(row);
        let is_own = |vm: &VmUid| self.parts.disks.file(*vm) == file;
        let below = row.vm().filter(is_own);
        let below = below.map(|vm| self.parts.disks.files(vm).below);
        std::iter::once(file)
            .chain(below.unwrap_or_default())
            .collect()
    }

    /// The disk of a virtual machine as its domain has it.
    pub(in crate::vm) fn root_of(&self, vm: VmUid) -> Result<Disk> {
        let disks = &self.parts.disks;
        let disk = disks.known(vm)?;
        let files = disks.files(vm);
        let base = if disk.linked {
            let base = disks.base(vm).ok_or(disk::Error::ImageLost(vm))?;
            let format = match base.format {
                Format::Qcow2 => DiskFormat::Qcow2,
                Format::Raw => DiskFormat::Raw,
            };
            Some((base.path, format))
        } else {
            None
        };
        let path = files.active;
        let source = match base {
            base if !files.below.is_empty() => DiskSource::Layers {
                path,
                below: files.below,
                base,
            },
            Some((base, base_format)) => DiskSource::Overlay {
                path,
                base,
                base_format,
            },
            None => DiskSource::File(path),
        };
        Ok(Disk {
            device: DiskDevice::Virtio,
            source,
            format: DiskFormat::Qcow2,
            discard: true,
            read_only: false,
            serial: None,
        })
    }
}
