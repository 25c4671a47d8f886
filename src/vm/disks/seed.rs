//! The cloud-init image of a guest.
//!
//! Invariant: it is complete when it has its name, and the machine's user alone can read it. It is removed
//! with its container; beside saved memory it stays, since the guest continues with the same disks.
//! Failure: a container whose image cannot be made is not created.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use podspec::{GuestAgent, GuestData, GuestName, Instance, NoCloud, Role, VmUid};

use crate::disk::unfinished;
use crate::files;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::sources::Wanted;
use crate::vm::domain::{Disk, DiskFormat, DiskSource};
use crate::vm::error::Result;
use crate::vm::model::{Container, ContainerConfig};
use crate::vm::service::Containers;
use crate::vm::users::Owner;

/// What cloud-init runs at each boot.
const INSTALL: &[u8] = include_bytes!("seed/install-agent.sh");

/// The serial number by which a guest finds the disk: `/dev/disk/by-id/virtio-vmlet-seed`.
pub(super) const SERIAL: &str = "vmlet-seed";

impl<P: Platform> Containers<P> {
    /// The files that the guest is to find. Waits for the objects that they come from; no lock is
    /// held.
    pub(in crate::vm) async fn guest_files(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
    ) -> Result<Option<NoCloud>> {
        let annotations = crate::vm::lifecycle::request::annotations(sandbox, config);
        let instance = crate::vm::lifecycle::request::instance(sandbox, config)?;
        let data = GuestData::from_pod(&annotations)?;
        let Some(data) = data.filter(|_| instance.role == Role::Machine && !instance.restore)
        else {
            return Ok(None);
        };
        let pod = &sandbox.config.metadata;
        let mut held = BTreeMap::new();
        for source in data.sources() {
            let wanted = Wanted {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                pod_uid: pod.uid.clone(),
                source: source.clone(),
            };
            let inside = source.mount_path();
            let mount = config.mounts.iter().find(|m| m.container_path == inside);
            let mount = mount.map(|mount| mount.host_path.clone());
            held.insert(source, self.sources.get(wanted, mount).await?);
        }
        let guest = GuestName {
            instance_id: &format!("{}.{}", pod.name, pod.namespace),
            host_name: match sandbox.config.hostname.as_str() {
                "" => &pod.name,
                name => name,
            },
        };
        Ok(Some(data.assemble(&guest, &held)?))
    }

    /// Whether saved memory knows of such an image.
    pub(in crate::vm) async fn has_old_seed(&self, instance: &Instance) -> Result<bool> {
        let Some(vm) = instance.vm.filter(|_| instance.restore) else {
            return Ok(false);
        };
        let file = self.parts.disks.seed_file(vm);
        let found = tokio::fs::try_exists(&file).await;
        Ok(found.map_err(files::failed("look for", &file))?)
    }

    /// Writes the image of a container that has taken its disk.
    pub(in crate::vm) async fn make_seed(
        &self,
        row: &Container,
        wanted: Option<NoCloud>,
    ) -> Result<()> {
        let Some(wanted) = wanted else {
            return Ok(());
        };
        let path = self.seed_file(row);
        let owner = self.owner(row);
        let target = path.clone();
        let agent = match row.spec.machine.guest_agent {
            GuestAgent::Auto => Some(self.settings.guest_agent.clone()),
            GuestAgent::Image | GuestAgent::Off => None,
        };
        let make = move || -> Result<()> {
            let mut entries = entries(wanted);
            entries.extend(agent.map_or_else(Vec::new, |program| with_agent(&program)));
            let image = cloudinit_image::image(cloudinit_image::NO_CLOUD, entries)?;
            let written = write(&target, &image, owner);
            Ok(written.map_err(files::failed("write", &target))?)
        };
        let made = tokio::task::spawn_blocking(make).await;
        made.map_err(crate::tasks::Aborted::from)??;
        faultpoint::point("vm.create.seed");
        Ok(())
    }

    /// The disk with the image, if the container has one.
    pub(in crate::vm) fn seed_disk(&self, row: &Container) -> Option<Disk> {
        row.spec.seed.then(|| Disk {
            source: DiskSource::File(self.seed_file(row)),
            format: DiskFormat::Raw,
            discard: false,
            read_only: true,
            serial: Some(SERIAL.to_owned()),
        })
    }

    /// Removes the image of a container that boots from no machine's disk; success when there is
    /// none.
    pub(super) async fn remove_seed(&self, row: &Container) -> Result<()> {
        match row.vm() {
            None => remove(&self.paths.seed(&row.id)).await,
            Some(_) => Ok(()),
        }
    }

    /// Removes the image beside a machine's disk, unless saved memory is there, too.
    pub(in crate::vm) async fn remove_machine_seed(&self, vm: VmUid) -> Result<()> {
        let disks = &self.parts.disks;
        match disks.get(vm) {
            Some(disk) if disk.memory.is_some() => Ok(()),
            _ => Ok(disks.remove_seed(vm).await?),
        }
    }

    fn seed_file(&self, row: &Container) -> PathBuf {
        match row.vm() {
            Some(vm) => self.parts.disks.seed_file(vm),
            None => self.paths.seed(&row.id),
        }
    }
}

fn entries(wanted: NoCloud) -> Vec<cloudinit_image::File> {
    let file = |name, content| cloudinit_image::File { name, content };
    let network = wanted.network_config;
    [
        Some(file("meta-data", wanted.meta_data)),
        Some(file("user-data", wanted.user_data)),
        network.map(|content| file("network-config", content)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The agent for guests, and what makes cloud-init install it at each boot. Blocks.
fn with_agent(program: &Path) -> Vec<cloudinit_image::File> {
    let file = |name, content| cloudinit_image::File { name, content };
    match fs::read(program) {
        Ok(content) => vec![
            file("vendor-data", INSTALL.to_vec()),
            file("vmlet-guest", content),
        ],
        Err(error) => {
            let (program, error) = (program.display(), crate::one_line(&error));
            tracing::warn!(%program, error, "guest agent not on the seed image");
            Vec::new()
        }
    }
}

/// Writes under another name first; blocks.
fn write(path: &Path, image: &[u8], Owner { uid, gid }: Owner) -> std::io::Result<()> {
    let unfinished = unfinished(path);
    match fs::remove_file(&unfinished) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file: File = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    file.write_all(image)?;
    fchown(&file, Some(uid), Some(gid))?;
    file.sync_all()?;
    fs::rename(&unfinished, path)
}

async fn remove(path: &Path) -> Result<()> {
    for path in [&unfinished(path), path] {
        match tokio::fs::remove_file(path).await {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(files::failed("remove", path)(e).into());
            }
            _ => {}
        }
    }
    Ok(())
}
