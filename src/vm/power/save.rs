//! Suspends a machine to disk.
//!
//! Invariant: the memory counts as saved only when all of it is in its file and the machine has
//! ended; the machine ends only when all of it is written.
//! Failure: the guest runs on and nothing is left, or, when libvirt is away, what is left is
//! settled by the repetition.

use std::time::Duration;

use libvirt::{Hypervisor, Pause, Power};
use podspec::{Annotations, Key, VmUid};
use tapmanager::wire::KnownNic;

use super::snapshots;
use crate::disk::SavedNic;
use crate::platform::Platform;
use crate::sandbox::SandboxConfig;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::shares::ShareError;

/// Time between two looks at a save that an earlier process began.
const LOOK: Duration = Duration::from_millis(500);

impl<P: Platform> Containers<P> {
    /// Saves the memory of a virtual machine and ends it; success when that was done before.
    pub async fn save(&self, vm: VmUid) -> Result<()> {
        let disks = &self.parts.disks;
        loop {
            let Ok(row) = self.running_vm(vm) else {
                if self.is_starting(vm) {
                    // What is there is what it returns from.
                    return Err(Error::NotRunning(vm));
                }
                let saved = disks.get(vm).is_some() && disks.settle_memory(vm).await?;
                return saved.then_some(()).ok_or(Error::NotRunning(vm));
            };
            if row.vm().is_none() {
                return Err(Error::RootNotOfNode(vm));
            }
            if self.is_pivoting(&row) {
                // Its pause is not its owner's.
                let _alone = self.parts.locks.lock(&snapshots::lock_name(vm)).await;
                self.settle_snapshot(&row, vm).await?;
            }
            let power = self.parts.hypervisor.power(row.domain()).await;
            match power.map_err(hypervisor("look for"))? {
                // An earlier process began, and libvirt continues.
                Some(Power::Paused(Pause::Passing)) => tokio::time::sleep(LOOK).await,
                Some(Power::Off) | None => {
                    // Before its end is recorded, which gives the disk back.
                    disks.settle_memory(vm).await?;
                    self.end_if_inactive(&row).await?;
                }
                Some(_) if !row.spec.shares.is_empty() => {
                    return Err(ShareError::NotSaved(vm).into());
                }
                Some(power) => {
                    // libvirt saves no memory while a disk has a job.
                    self.stop_pull(&row, vm).await?;
                    let paused = matches!(power, Power::Paused(_));
                    self.write_memory(&row, vm, paused).await?;
                }
            }
        }
    }

    /// Makes a save in progress fail; the guest runs on.
    pub async fn abort_save(&self, vm: VmUid) -> Result<()> {
        let domain = self.running_vm(vm)?.domain();
        let aborted = self.parts.hypervisor.abort_save(domain).await;
        aborted.map_err(hypervisor("stop saving"))
    }

    async fn write_memory(&self, row: &Container, vm: VmUid, paused: bool) -> Result<()> {
        let disks = &self.parts.disks;
        let driver = &self.parts.hypervisor;
        {
            // A guest that a snapshot has frozen would be frozen when it continues, and no record says so then.
            let _alone = self.parts.locks.lock(&snapshots::lock_name(vm)).await;
            self.settle_snapshot(row, vm).await?;
            self.end_forgotten_job(row, vm).await?;
            disks.begin_memory(vm, self.nics(row), paused).await?;
        }
        let written = driver
            .save(row.domain(), disks.unfinished_memory(vm))
            .await
            .map_err(hypervisor("save"));
        faultpoint::point("node.save.written");
        let Err(error) = written else {
            return Ok(());
        };
        // When libvirt is unavailable, the state of its call is unknown.
        if let Ok(Some(Power::On | Power::Paused(Pause::Asked | Pause::IoError))) =
            driver.power(row.domain()).await
        {
            disks.drop_memory(vm).await?;
            if !paused {
                driver
                    .resume(row.domain())
                    .await
                    .map_err(hypervisor("resume"))?;
            }
        }
        Err(error)
    }

    /// The NICs of a machine as its guest knows them.
    pub(in crate::vm) fn nics(&self, row: &Container) -> Vec<SavedNic> {
        let sandbox = self.parts.sandboxes.get(&row.sandbox);
        let network = sandbox.and_then(|sandbox| sandbox.network.clone());
        let nics = network.iter().flat_map(|network| network.guest_nics());
        nics.map(|nic| SavedNic {
            mac: nic.mac.clone(),
            addresses: nic
                .addresses
                .iter()
                .map(|address| address.net.addr().to_string())
                .collect(),
        })
        .collect()
    }

    /// The NICs that the guest of a new sandbox has already, because it continues from saved
    /// memory; `None` for a guest that boots.
    pub fn nics_in_memory(&self, config: &SandboxConfig) -> Option<Vec<KnownNic>> {
        let annotations = Annotations::new(&config.annotations);
        let vm: Option<VmUid> = annotations.get(Key::VmDisk).ok().flatten();
        let restore: Option<bool> = annotations.get(Key::Restore).ok().flatten();
        let vm = vm.filter(|_| restore == Some(true))?;
        let memory = self.parts.disks.get(vm).and_then(|d| d.memory.clone())?;
        let known = memory.nics.into_iter().map(|nic| KnownNic {
            mac: nic.mac,
            addresses: nic
                .addresses
                .iter()
                .filter_map(|address| address.parse().ok())
                .collect(),
        });
        Some(known.collect())
    }
}
