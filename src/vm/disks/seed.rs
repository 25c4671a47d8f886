//! The cloud-init image of a guest, or that for Windows Setup.
//!
//! Invariant: it is complete when it has its name, and the machine's user alone can read it. It is removed
//! with its container; beside saved memory it stays, since the guest continues with the same disks.
//! Failure: a container whose image cannot be made is not created.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use podspec::{
    AnswerFile, CloudData, GuestAgent, GuestFile, GuestName, Instance, Layout, NetworkData, VmUid,
};
use serde_json::Value;
use tapmanager::wire::Network;

use crate::disk::unfinished;
use crate::files;
use crate::foreign::Foreign;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::sources::{Files, Wanted};
use crate::vm::domain::{Disk, DiskDevice, DiskFormat, DiskSource};
use crate::vm::error::{Error, Result};
use crate::vm::file_disks::FileDisk;
use crate::vm::lifecycle::request;
use crate::vm::model::{Container, ContainerConfig, Environment, Mount, disk_paths};
use crate::vm::service::Containers;
use crate::vm::shares::{Share, volumes_of};
use crate::vm::users::Owner;

mod environment;
mod links;
mod network;
mod openstack;
mod plan;
mod shares;
#[cfg(test)]
mod tests;
mod vendor;
mod volume;

/// The serial number by which a guest finds the disk: `/dev/disk/by-id/virtio-vmlet-seed`.
pub(super) const SERIAL: &str = "vmlet-seed";

/// What a guest finds at its first boot.
#[derive(Debug)]
pub(in crate::vm) enum SeedData {
    /// On a disk, for cloud-init.
    CloudInit(CloudData),
    /// On a CD-ROM, for Windows Setup.
    Sysprep(Vec<AnswerFile>),
}

impl SeedData {
    /// What the guest ignores of them, in a sentence for the pod's events.
    pub(in crate::vm) fn finding(&self) -> Option<String> {
        let Self::CloudInit(data) = self else {
            return None;
        };
        let reason = data.ignored_user_data()?;
        Some(format!("cloud-init ignores the user data: {reason}"))
    }
}

/// What the container of a machine adds to the data of its pod.
#[derive(Debug, Default)]
pub(in crate::vm) struct Surroundings {
    /// Its environment.
    pub(in crate::vm) environment: Environment,
    /// Its mounts.
    pub(in crate::vm) mounts: Vec<Mount>,
    /// Which of them are shares.
    pub(in crate::vm) shares: Vec<Share>,
    /// Which of them hold disks.
    pub(in crate::vm) file_disks: Vec<FileDisk>,
}

impl<P: Platform> Containers<P> {
    /// The data that the guest is to find. Waits for the objects that they come from; no lock is
    /// held.
    pub(in crate::vm) async fn guest_data(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        mut surroundings: Surroundings,
    ) -> Result<Option<SeedData>> {
        let instance = request::instance(sandbox, config)?;
        let data = request::guest_data(&sandbox.config, config)?;
        let Some(data) = data.filter(|_| !instance.restore) else {
            return Ok(None);
        };
        let pod = &sandbox.config.metadata;
        let mut held = BTreeMap::new();
        for source in data.sources() {
            let wanted = Wanted {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                pod_uid: pod.uid.clone(),
                task: String::new(),
                source: source.clone(),
            };
            let inside = source.mount_path();
            let mount = config.mounts.iter().find(|m| m.container_path == inside);
            let mount = mount.map(|mount| mount.host_path.clone());
            held.insert(source, self.sources.get(wanted, mount).await?);
        }
        if let Some(files) = data.answer_files(&held)? {
            return Ok(Some(SeedData::Sysprep(files)));
        }
        let guest = GuestName {
            instance_id: &format!("{}.{}", pod.name, pod.namespace),
            host_name: match sandbox.config.hostname.as_str() {
                "" => &pod.name,
                name => name,
            },
        };
        let mut data = data.assemble(&guest, &held)?;
        if let NetworkData::Generated { version, dhcp } = data.network {
            let network = sandbox.network.as_ref();
            let config = network_config(network, data.layout, (version, dhcp));
            data.network = NetworkData::Given(format!("{config:#}\n").into_bytes());
        }
        let blocks = self
            .wanted_blocks(&sandbox.id, config, instance.role)
            .await?;
        let script = links::script(&disk_paths(&blocks, &surroundings.file_disks));
        data.insert_mount_script(script.as_deref().unwrap_or_default());
        let Surroundings {
            mounts,
            shares,
            file_disks,
            ..
        } = &mut surroundings;
        mounts.retain(|mount| {
            let is_shared = shares
                .iter()
                .any(|share| share.path == mount.container_path);
            !is_shared && !file_disks.iter().any(|disk| disk.is_in(mount))
        });
        let mut files = mounted(&self.foreign, &pod.uid, std::mem::take(mounts)).await?;
        files.append(&mut data.files);
        files.extend(environment::file(&surroundings.environment));
        files.extend(script.as_deref().map(links::file));
        data.files = files;
        Ok(Some(SeedData::CloudInit(data)))
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
        wanted: Option<SeedData>,
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
        let shares = row.spec.shares.clone();
        let make = move || -> Result<()> {
            let (label, files) = match wanted {
                SeedData::CloudInit(data) => {
                    let label = volume::label(data.layout);
                    (label, volume::files(data, &shares, agent.as_deref()))
                }
                SeedData::Sysprep(files) => volume::sysprep(files),
            };
            let image = cloudinit_image::image(label, files)?;
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
        let device = if row.spec.sysprep {
            DiskDevice::CdRom
        } else {
            DiskDevice::Virtio
        };
        row.spec.seed.then(|| Disk {
            device,
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

/// The configuration of the network, as the layout has it.
fn network_config(
    network: Option<&Network>,
    layout: Layout,
    (version, dhcp): (podspec::NetworkVersion, bool),
) -> Value {
    match layout {
        Layout::NoCloud => network::no_cloud(network, version, dhcp),
        Layout::ConfigDrive => openstack::network_data(network, dhcp),
    }
}

/// The files of read-only mounts.
async fn mounted(foreign: &Foreign, pod_uid: &str, mounts: Vec<Mount>) -> Result<Vec<GuestFile>> {
    let owner = volumes_of(pod_uid);
    let pod_uid = pod_uid.to_owned();
    let read = move || {
        let mut files = Files::default();
        for mount in mounts.iter().filter(|mount| mount.is_of_the_guest()) {
            let path = &mount.container_path;
            let added = files.add(&mount.host_path, &pod_uid, path);
            added.map_err(|reason| Error::Mount {
                path: path.clone(),
                reason,
            })?;
        }
        Ok(files.into_files())
    };
    foreign.look(&owner, read).await?
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
