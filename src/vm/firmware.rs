//! The firmware that boots a guest, and the variable store of UEFI.
//!
//! Invariant: what the pod requests counts; else a machine that has a store boots by UEFI as before, and
//! one without a store if its image has a system partition of UEFI and no boot code; saved memory returns to the
//! firmware that it was saved with. A store that no firmware has written, as a start that failed leaves it, counts as
//! none. A store is the board's, not the content of the disk: it lies beside the root disk, is made of the node's template before
//! the first start, complete and on the device before it has its name, and is removed with the directory
//! of the disk. The emulator alone reads what is in it; the daemon compares it with the template.
//! Failure: [`Error`]; a store that was begun is made again by the next start.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use podspec::{Firmware, Instance, Mib, Role, VmUid};

use crate::files;
use crate::images::{Boot, Format, boot_of};
use crate::platform::Platform;
use crate::tasks::Aborted;
use crate::vm::disks::instance::Root;
use crate::vm::domain;
use crate::vm::host::uefi::{self, LARGEST_STORE, Uefi};
use crate::vm::model::{Container, Spec};
use crate::vm::service::Containers;

/// With less memory the firmware has no place for a kernel.
const LEAST_MEMORY: Mib = Mib::new(256);
/// What the description of a machine has that boots by UEFI.
const STORE: &str = "<nvram";

/// Why a guest cannot boot by UEFI.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node has no such firmware.
    #[error("the machine boots by UEFI, and the node has no firmware for it: {0}")]
    Missing(String),
    /// The firmware does not start in so little memory.
    #[error(
        "the machine boots by UEFI, which needs at least {} MiB of memory, and has {}: raise its memory limit, \
         or vmlet.dev/memory",
        LEAST_MEMORY.get(), .0.get()
    )]
    Memory(Mib),
}

/// What boots a new container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::vm) struct Chosen {
    pub(in crate::vm) uefi: bool,
    /// Why the guest will not boot, if that is known.
    pub(in crate::vm) problem: Option<&'static str>,
}

impl Spec {
    /// The name of the firmware that boots the guest.
    pub const fn firmware(&self) -> &'static str {
        if self.uefi { "uefi" } else { "bios" }
    }
}

impl<P: Platform> Containers<P> {
    /// The firmware of a new container, which the node has.
    pub(in crate::vm) async fn choose_firmware(
        &self,
        machine: &podspec::Machine,
        instance: &Instance,
        root: &Root,
    ) -> crate::vm::Result<Chosen> {
        if instance.role != Role::Machine {
            return Ok(Chosen {
                uefi: false,
                problem: None,
            });
        }
        let store = instance.vm.map(|vm| self.parts.disks.store_file(vm));
        if let Some(saved) = self.saved_description(instance).await? {
            let uefi = boots_by_uefi(false, Some(&saved));
            if uefi {
                self.uefi(store).await?;
            }
            return Ok(Chosen {
                uefi,
                problem: None,
            });
        }
        let boot = self.boot_of_root(root, instance.vm).await;
        let chosen = match machine.firmware {
            Some(firmware) => firmware,
            None if boot == Some(Boot::Efi) => Firmware::Uefi,
            None if self.had_uefi(store.clone()).await? => Firmware::Uefi,
            None => Firmware::Bios,
        };
        if chosen == Firmware::Bios {
            return Ok(Chosen {
                uefi: false,
                problem: boot.and_then(Boot::problem),
            });
        }
        self.uefi(store).await?;
        if machine.memory < LEAST_MEMORY {
            return Err(Error::Memory(machine.memory).into());
        }
        Ok(Chosen {
            uefi: true,
            problem: None,
        })
    }

    /// What starts from the root disk, as far as its image or the disk itself shows it.
    async fn boot_of_root(&self, root: &Root, vm: Option<VmUid>) -> Option<Boot> {
        let image = root.choice().map(|choice| &choice.image);
        let image = image.map(|image| (image.path.clone(), image.format));
        let (path, format) = image.or_else(|| self.content_of(vm?))?;
        let look = move || boot_of(&open_regular(&path)?, format);
        // A file that cannot be read is another error's matter.
        tokio::task::spawn_blocking(look).await.ok()?.ok()?
    }

    /// What the disk of a virtual machine begins with: the image under it, or its own first file.
    fn content_of(&self, vm: VmUid) -> Option<(PathBuf, Format)> {
        let disks = &self.parts.disks;
        if disks.get(vm)?.linked {
            return disks.base(vm).map(|base| (base.path, base.format));
        }
        Some((disks.first_file(vm), Format::Qcow2))
    }

    /// Whether a machine booted by UEFI before, as its store shows it.
    async fn had_uefi(&self, store: Option<PathBuf>) -> crate::vm::Result<bool> {
        let directory = self.settings.firmware.clone();
        let look = move || store.is_some_and(|store| is_written(&store, &directory));
        Ok(tokio::task::spawn_blocking(look)
            .await
            .map_err(Aborted::from)?)
    }

    /// The firmware of the node for a store, if that is there.
    async fn uefi(&self, store: Option<PathBuf>) -> crate::vm::Result<Uefi> {
        let directory = self.settings.firmware.clone();
        let find = move || uefi::find(&directory, store.as_deref().and_then(length_of));
        let found = tokio::task::spawn_blocking(find).await;
        Ok(found.map_err(Aborted::from)?.map_err(Error::Missing)?)
    }

    /// The firmware for a start, with the store of the machine, which is made if there is none. Saved
    /// memory fits only the firmware that it was saved with.
    pub(in crate::vm) async fn flash(
        &self,
        row: &Container,
        saved: Option<&str>,
    ) -> crate::vm::Result<Option<domain::Uefi>> {
        if !boots_by_uefi(row.spec.uefi, saved) {
            return Ok(None);
        }
        let store = match row.vm() {
            Some(vm) => self.parts.disks.store_file(vm),
            None => self.paths.variable_store(&row.sandbox),
        };
        let Uefi { code, template, .. } = self.uefi(Some(store.clone())).await?;
        let target = store.clone();
        let made = tokio::task::spawn_blocking(move || make(&target, &template)).await;
        let made = made.map_err(Aborted::from)?;
        if made.map_err(files::failed("make", &store))? {
            tracing::info!(container = %row.id, store = %store.display(), "variable store created");
        }
        Ok(Some(domain::Uefi { code, store }))
    }
}

/// Opens a file without waiting for another process, as a pipe would.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(file)
}

fn boots_by_uefi(chosen: bool, saved: Option<&str>) -> bool {
    saved.map_or(chosen, |description| description.contains(STORE))
}

/// The length of a store that is there.
fn length_of(store: &Path) -> Option<u64> {
    let found = std::fs::symlink_metadata(store).ok()?;
    found.is_file().then_some(found.len())
}

/// Whether firmware has written a store. Blocks.
fn is_written(store: &Path, directory: &Path) -> bool {
    let Some(length) = length_of(store) else {
        return false;
    };
    let Ok(found) = uefi::find(directory, Some(length)) else {
        return true;
    };
    let written = open_regular(store).and_then(content).ok();
    let template = File::open(found.template).and_then(content).ok();
    written.is_none() || written != template
}

/// All of a store, or of a template.
fn content(file: File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(LARGEST_STORE).read_to_end(&mut content)?;
    Ok(content)
}

/// Makes a store unless it is there; whether it was made.
fn make(store: &Path, template: &Path) -> io::Result<bool> {
    if store.try_exists()? {
        return Ok(false);
    }
    let content = content(File::open(template)?)?;
    if let Some(directory) = store.parent() {
        // A sandbox whose root disk is a volume has none yet. QEMU's user may traverse it, no user may
        // list it.
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(directory)?;
        std::fs::set_permissions(directory, Permissions::from_mode(0o711))?;
    }
    service::files::replace(store, &unfinished(store), &content)?;
    Ok(true)
}

/// The name of a store until all of it is written.
fn unfinished(store: &Path) -> PathBuf {
    store.with_extension("new")
}

#[cfg(test)]
mod tests;
