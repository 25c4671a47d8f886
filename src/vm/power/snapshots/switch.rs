//! The switch of a running emulator to the new layer of a snapshot.
//!
//! Invariant: what libvirt says of the running emulator decides whether it took place, never the outcome of a call.
//! Where it says that it did not, the layer loses its name before it says so for good: libvirtd goes on with the
//! request of a dead client.
//! Failure: [`LayerError::NotSwitched`] and [`LayerError::MemoryNotSaved`] leave no snapshot; without an emulator the
//! disk's next user ends the change.

use libvirt::Hypervisor;
use podspec::VmUid;
use tokio::time::Instant;

use crate::disk::{self, Change};
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::power::LayerError;
use crate::vm::power::quiesce::FrozenGuest;
use crate::vm::power::snapshot_memory::Progress;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// Lets the emulator write to the new layer, and records that. `frozen`: the guest has frozen its file systems.
    /// `progress` is of the memory, if the snapshot is to have that.
    pub(super) async fn switch(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
        frozen: Option<FrozenGuest>,
        progress: Option<Progress<'_>>,
    ) -> Result<()> {
        let disks = &self.parts.disks;
        let deadline = frozen.as_ref().map(|guest| guest.freeze.deadline);
        let turn = self.disk_lock(vm);
        let turn = match deadline {
            None => Some(turn.await),
            Some(deadline) => tokio::time::timeout_at(deadline, turn).await.ok(),
        };
        let Some(_turn) = turn else {
            if let Some(guest) = frozen {
                self.end_freeze(row, vm, change, guest).await?;
            }
            disks.abandon_change(vm, change.layer).await?;
            let doing = "changed by another request, for longer than its guest may stay frozen";
            return Err(disk::Error::Busy { vm, doing }.into());
        };
        let is_pending = disks
            .change(vm)
            .is_some_and(|now| now.layer == change.layer);
        if !is_pending || !disks.is_held_by(vm, &row.id) {
            // The machine ended, and the disk's next user ended the change, or will.
            return Err(Error::NotRunning(vm));
        }
        let memory = disks.memory_in_progress(vm, change);
        let switched = match memory.as_ref().zip(progress) {
            Some((memory, progress)) => {
                self.switch_with_memory(row, vm, change, memory, progress)
                    .await
            }
            None => self.switch_disk(row, vm, change, deadline).await,
        };
        faultpoint::point("node.snapshot.switched");
        let was_frozen = match frozen {
            None => false,
            Some(guest) => self.end_freeze(row, vm, change, guest).await?,
        };
        // After an error it may have taken place after the thaw.
        let is_quiesced = was_frozen && switched.is_ok();
        let is_switched = self.end_change(row, vm, change, is_quiesced).await?;
        match switched {
            Err(source) if !is_switched => Err(match memory {
                Some(_) => LayerError::MemoryNotSaved { vm, source }.into(),
                None => LayerError::NotSwitched { vm, source }.into(),
            }),
            _ => Ok(()),
        }
    }

    async fn switch_disk(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
        deadline: Option<Instant>,
    ) -> libvirt::Result<()> {
        let file = self.parts.disks.new_layer(vm, change);
        let switch = self.parts.hypervisor.switch_root(row.domain(), file);
        let Some(deadline) = deadline else {
            return switch.await;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let in_time = tokio::time::timeout(left, switch).await;
        let call = "switch disk";
        in_time.unwrap_or(Err(libvirt::Error::Deadline {
            call,
            deadline: left,
        }))
    }

    /// Whether the emulator writes to the layer of a change.
    async fn is_switched(&self, row: &Container, vm: VmUid, change: Change) -> Result<bool> {
        let file = self.parts.hypervisor.root_file(row.domain()).await;
        let file = file.map_err(hypervisor("look at the disk of"))?;
        let file = file.ok_or(Error::NotRunning(vm))?;
        Ok(file == self.parts.disks.new_layer(vm, change))
    }

    /// Ends the change of a machine that runs as its emulator says; true when that writes to the new layer.
    pub(super) async fn end_change(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
        is_quiesced: bool,
    ) -> Result<bool> {
        let disks = &self.parts.disks;
        if disks.memory_in_progress(vm, change).is_some() {
            // The emulator answers a look while it writes memory for a process that has gone.
            self.end_left_save(row, vm).await?;
        }
        let mut is_switched = self.is_switched(row, vm, change).await?;
        if !is_switched && disks.doubt_layer(vm, change).await? {
            // A request that an earlier process left in libvirtd may have begun after the look; now none finds the
            // layer any more.
            is_switched = self.is_switched(row, vm, change).await?;
        }
        if let Some(memory) = disks.memory_in_progress(vm, change) {
            self.settle_guest(row, vm, &memory).await?;
        }
        if is_switched {
            disks.restore_layer(vm, change).await?;
            disks.complete_memory(vm, change).await?;
            disks.commit_change(vm, change.layer, is_quiesced).await?;
        } else {
            disks.abandon_change(vm, change.layer).await?;
        }
        Ok(is_switched)
    }
}
