//! What can be done with a machine beside starting and stopping its container, by the virtual
//! machine that it is: pause, restart, and the memory that is saved, taken back or discarded.
//!
//! Invariant: the container stays, and nothing here changes its phase: an end of the power is the
//! stop of the container.
//! Failure: [`Error::NotRunning`] when there is no such machine here; libvirt's own error
//! otherwise.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use libvirt::{Hypervisor, State};
use podspec::VmUid;
use tokio::time::Instant;

mod backup;
mod cable;
mod clone;
mod discard;
mod error;
mod freezes;
mod hold;
mod late;
mod merge;
mod promote;
mod pull;
mod quiesce;
mod restart;
mod resume;
mod save;
mod snapshot_memory;
mod snapshots;
pub(in crate::vm) mod stalled;

pub(super) use error::LayerError;
pub(in crate::vm) use freezes::Freezes;
pub use hold::HeldGuest;
pub(in crate::vm) use late::LateRequests;
pub(in crate::vm) use merge::pause_name;

use super::error::{Error, Result, hypervisor};
use super::model::Container;
use super::service::Containers;
use crate::disk;
use crate::platform::Platform;
use crate::sandbox::Sandbox;

/// Time for `vmlet-guest` to answer after the guest was resumed.
const AWAKE: Duration = Duration::from_secs(20);

impl<P: Platform> Containers<P> {
    /// The virtual machine that a container is, by its disk or else by the pod's label.
    pub fn vm_of(&self, row: &Container) -> Option<VmUid> {
        // A pod without a disk of its own names its virtual machine by a label.
        let by_label = || {
            let sandbox: Arc<Sandbox> = self.parts.sandboxes.get(&row.sandbox)?;
            sandbox
                .config
                .labels
                .get(podspec::names::VM_UID_LABEL)?
                .parse()
                .ok()
        };
        row.vm().or_else(by_label)
    }

    /// The container that runs as this virtual machine.
    pub fn running_vm(&self, vm: VmUid) -> Result<Arc<Container>> {
        let all = self.parts.table.all().into_iter();
        // The placeholder of a machine has its label, and runs while its disk is made and is off.
        let mut running =
            all.filter(|row| row.phase.runs() && row.boots() && self.vm_of(row) == Some(vm));
        running.next().ok_or(Error::NotRunning(vm))
    }

    /// Requests the guest to power off until it has, or until `deadline`; true when it is off.
    pub async fn shut_down(&self, vm: VmUid, deadline: Instant) -> Result<bool> {
        let mut changes = self.parts.table.changes();
        let Ok(row) = self.running_vm(vm) else {
            return Ok(true);
        };
        self.check_connected("shut down").await?;
        let mut requests = pin!(self.request_power_off(&row));
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return Ok(false),
                _ = changes.changed() => {}
                stalled::Unresponsive(reason) = &mut requests => return Err(Error::DiskFails(reason)),
            }
            let now = self.parts.table.get(&row.id);
            if !now.is_some_and(|row| row.phase.runs()) {
                return Ok(true);
            }
        }
    }

    /// Ends the machine if it runs in this pod, as a stop of its container with this grace does: a
    /// stop that is in progress gets shorter, never longer.
    pub async fn power_off(self: &Arc<Self>, vm: VmUid, pod: &str, grace: Duration) -> Result<()> {
        for row in self.parts.table.all() {
            let sandbox = self.parts.sandboxes.get(&row.sandbox);
            let is_of_pod = sandbox.is_some_and(|sandbox| sandbox.config.metadata.uid == pod);
            if is_of_pod && self.vm_of(&row) == Some(vm) {
                self.stop(&row.id, grace).await?;
            }
        }
        Ok(())
    }

    /// Keeps the guest from running. One that stands still because a disk failed is not resumed
    /// when that has space, either.
    pub async fn pause(&self, vm: VmUid) -> Result<()> {
        let row = self.running_vm(vm)?;
        let _still = self.parts.locks.lock(&pause_name(vm)).await;
        // libvirt keeps the reason of the pause that there is.
        if !row.held {
            self.record(&row, |row| row.held = true).await?;
        }
        let paused = self.parts.hypervisor.suspend(row.domain()).await;
        paused.map_err(hypervisor("pause"))
    }

    /// Lets the guest run.
    pub async fn unpause(&self, vm: VmUid) -> Result<()> {
        let row = self.running_vm(vm)?;
        let domain = row.domain();
        let _still = self.parts.locks.lock(&pause_name(vm)).await;
        if row.held {
            self.record(&row, |row| row.held = false).await?;
        }
        if self.is_pivoting(&row) {
            let doing = "given another file by a merge of its layers, which takes a moment";
            return Err(disk::Error::Busy { vm, doing }.into());
        }
        if self.has_disk_failed(domain).await {
            self.resume_after_failure(domain).await?;
        } else {
            let runs = self.parts.hypervisor.resume(domain).await;
            runs.map_err(hypervisor("unpause"))?;
        }
        self.set_guest_time(&row);
        Ok(())
    }

    /// Sets the clock of a guest that did not run for a while, if `vmlet-guest` answers. No request
    /// waits for it.
    pub(in crate::vm) fn set_guest_time(&self, row: &Container) {
        let guests = Arc::clone(&self.guests);
        let id = row.id.clone();
        let socket = self.guest_port(row);
        self.parts.tasks.spawn(async move {
            let Some(agent) = guests.agent(&id, &socket, AWAKE).await else {
                return;
            };
            match agent.set_time().await {
                Ok(()) => tracing::info!(container = %id, "guest clock set"),
                Err(error) => {
                    let error = crate::one_line(&error);
                    tracing::warn!(container = %id, error, "guest clock not set");
                }
            }
        });
    }

    /// Removes the disk of a virtual machine that does not run, and the memory beside it; success
    /// when there is none.
    pub async fn delete_disk(&self, vm: VmUid) -> Result<()> {
        self.take_disk_back(vm).await?;
        Ok(self.parts.disks.delete(vm).await?)
    }

    /// Takes the disk of a virtual machine back from a container whose machine has ended, and refuses when
    /// one runs on it, with a record or without.
    async fn take_disk_back(&self, vm: VmUid) -> Result<()> {
        let disks = &self.parts.disks;
        if let Some(holder) = disks.get(vm).and_then(|disk| disk.holder.clone()) {
            match self.parts.table.get(&holder) {
                // The last steps of its end were cut short, or are in progress.
                Some(row) if !row.phase.is_live() => self.let_go(&row).await?,
                Some(_) => return Err(disk::Error::InUse { vm, holder }.into()),
                None => {}
            }
        }
        let domains = self.parts.hypervisor.list().await;
        let name = vm.to_string();
        let uses = domains
            .map_err(hypervisor("list"))?
            .into_iter()
            .find(|d| d.vm.as_ref() == Some(&name) && d.state == State::Active);
        if let Some(domain) = uses {
            return Err(Error::DomainLives {
                vm,
                name: domain.name,
            });
        }
        if let Some(holder) = disks.get(vm).and_then(|disk| disk.holder.clone())
            && self.parts.table.get(&holder).is_none()
        {
            disks.give_back(vm, &holder).await?;
        }
        Ok(())
    }

    /// Whether saved memory is ready beside the disk; with `discard` it is removed.
    pub async fn restore(&self, vm: VmUid, discard: bool) -> Result<()> {
        if discard {
            return self.discard_memory(vm).await;
        }
        let disks = &self.parts.disks;
        let held = disks.get(vm).is_some_and(|disk| disk.holder.is_some());
        if held || disks.settle_memory(vm).await? {
            let ready = disks.get(vm).is_some_and(|disk| disk.has_memory());
            return ready.then_some(()).ok_or(disk::Error::NoMemory(vm).into());
        }
        Err(disk::Error::NoMemory(vm).into())
    }
}

#[cfg(test)]
mod tests;
