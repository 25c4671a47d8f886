//! Snapshots of a machine's disk while it runs, and while it is off.
//!
//! ```text
//! record     layer     guest       emulator
//! change N   -         runs        writes to A
//! change N   N         runs        writes to A
//! freezes    N         frozen      writes to A
//! freezes    N         frozen      writes to N    A is on the device
//! freezes    N         runs        writes to N
//! N active   N         runs        writes to N
//! ```
//!
//! Invariant: no other container gets the disk from the switch until it is recorded; what libvirt says of the
//! running emulator decides whether it took place, never the outcome of a call. Where it says that it did not, the
//! layer loses its name before it says so for good: libvirtd goes on with the request of a dead client. A guest is
//! thawed, or was reset, before a snapshot of it is recorded; the record says that it freezes only with an agent that
//! does not thaw by itself (`quiesce.rs`).
//! Failure: [`Error::NotQuiesced`] and [`Error::NotSwitched`] leave no snapshot, [`Error::NotThawed`] leaves
//! the change to the repetition; without an emulator the disk's next user ends it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use libvirt::{Hypervisor, Pause, Power};
use podspec::VmUid;
use service::backoff::Backoff;
use tokio::time::Instant;

use super::quiesce::FrozenGuest;
use super::snapshot_memory::Progress;
use crate::disk::{self, Change, SnapshotUid, Step, TakenSnapshot};
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// Time to the next attempt to end an interrupted snapshot; each further failure doubles it.
const RETRY: Duration = Duration::from_secs(1);

/// The longest time between these attempts.
const SELDOM: Duration = Duration::from_secs(60);

impl<P: Platform> Containers<P> {
    /// Takes a snapshot of the disk of a virtual machine; success when it has been taken. `quiesce`: how
    /// long its guest may have its file systems frozen for it, in seconds; 0: it does not freeze them.
    pub async fn take_snapshot(
        self: &Arc<Self>,
        vm: VmUid,
        uid: SnapshotUid,
        quiesce: u32,
    ) -> Result<TakenSnapshot> {
        let taken = self.take_snapshot_once(vm, uid, quiesce, None).await;
        self.end_attempt(vm, taken)
    }

    /// Takes a snapshot of the disk of a virtual machine that runs, with the memory of its guest at that moment; success
    /// when it has been taken. `progress` gets percents.
    pub async fn take_snapshot_with_memory(
        self: &Arc<Self>,
        vm: VmUid,
        uid: SnapshotUid,
        progress: impl Fn(u8) + Send + Sync,
    ) -> Result<TakenSnapshot> {
        let taken = self.take_snapshot_once(vm, uid, 0, Some(&progress)).await;
        self.end_attempt(vm, taken)
    }

    fn end_attempt(
        self: &Arc<Self>,
        vm: VmUid,
        taken: Result<TakenSnapshot>,
    ) -> Result<TakenSnapshot> {
        if taken.is_err()
            && let Ok(row) = self.running_vm(vm)
        {
            // A guest that is still frozen does not wait for the repetition.
            self.catch_up_snapshot(&row);
        }
        taken
    }

    async fn take_snapshot_once(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        quiesce: u32,
        memory: Option<Progress<'_>>,
    ) -> Result<TakenSnapshot> {
        let disks = &self.parts.disks;
        if let Some(taken) = disks.snapshot(vm, uid).await? {
            return Ok(taken);
        }
        let Ok(row) = self.running_vm(vm) else {
            if self.is_starting(vm) {
                return Err(Error::NotRunning(vm));
            }
            if memory.is_some() {
                return Err(Error::MemoryOfStopped(vm));
            }
            self.take_disk_back(vm).await?;
            return Ok(disks.take_snapshot(vm, uid).await?);
        };
        if row.vm().is_none() {
            return Err(Error::RootNotOfNode(vm));
        }
        self.check_connected("take a snapshot").await?;
        self.make_way_for_change(&row, vm).await?;
        if disks.is_full(vm) {
            // Before it ends the merge that makes room.
            return Err(disk::Error::TooManySnapshots(vm).into());
        }
        let _alone = self.parts.locks.lock(&lock_name(vm)).await;
        self.settle_snapshot(&row, vm).await?;
        if let Some(taken) = disks.snapshot(vm, uid).await? {
            return Ok(taken);
        }
        self.end_forgotten_job(&row, vm).await?;
        let disk = disks.known(vm)?;
        if disk.has_memory() || disk.is_being_saved() {
            let doing = "kept for memory that is being saved";
            return Err(disk::Error::Busy { vm, doing }.into());
        }
        let power = self.parts.hypervisor.power(row.domain()).await;
        let power = power.map_err(hypervisor("look at"))?;
        if quiesce > 0 && matches!(power, Some(Power::Paused(_))) {
            return Err(Error::Paused(vm));
        }
        let limit = Duration::from_secs(quiesce.into());
        let agent = match quiesce {
            0 => None,
            _ => Some(self.freezing_agent(&row, vm, limit).await?),
        };
        let change = match memory {
            None => disks.begin_snapshot(vm, uid, true).await?,
            Some(_) => {
                let paused = power == Some(Power::Paused(Pause::Asked));
                let memory = self.memory_to_save(&row, vm, paused)?;
                disks.begin_snapshot_with_memory(vm, uid, memory).await?
            }
        };
        let claim = disks.claim_memory(vm, uid, change).await?;
        disks.make_layer(vm, change).await?;
        let frozen = match agent {
            None => None,
            Some(agent) => Some(self.freeze(&row, vm, change, agent, limit).await?),
        };
        self.switch(&row, vm, change, frozen, memory).await?;
        drop(claim);
        let taken = disks.snapshot(vm, uid).await?;
        let taken = taken.ok_or(disk::Error::NoSnapshot { vm, snapshot: uid })?;
        let memory_bytes = taken.memory_bytes;
        tracing::info!(%vm, snapshot = %uid, quiesced = taken.quiesced, memory_bytes, "snapshot taken");
        Ok(taken)
    }

    /// Reverts the disk of a virtual machine that is off.
    pub async fn revert(&self, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        self.take_disk_back(vm).await?;
        Ok(self.parts.disks.revert(vm, uid).await?)
    }

    /// The same; the next start resumes from the memory of the snapshot.
    pub async fn revert_with_memory(&self, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        self.take_disk_back(vm).await?;
        Ok(self.parts.disks.revert_with_memory(vm, uid).await?)
    }

    /// Deletes a snapshot of the disk of a virtual machine; success when it is gone. A caller that drops the
    /// future must [abandon](Self::abandon_merge) it.
    pub async fn delete_snapshot(
        self: &Arc<Self>,
        vm: VmUid,
        uid: SnapshotUid,
        progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let disks = &self.parts.disks;
        if disks.get(vm).is_none() {
            // A record that cannot be read is refused.
            return Ok(disks.delete_snapshot(vm, uid, progress).await?);
        }
        match self.take_disk_back(vm).await {
            Ok(()) => Ok(disks.delete_snapshot(vm, uid, progress).await?),
            Err(Error::VmDisk(disk::Error::InUse { vm, holder })) => match self.running_vm(vm) {
                Ok(row) => {
                    let deleted = self.delete_in_use(&row, vm, uid, holder, progress).await;
                    if deleted.is_err() {
                        // A guest that is still paused does not wait for the repetition.
                        self.catch_up_snapshot(&row);
                    }
                    deleted
                }
                Err(_) => Ok(disks.delete_snapshot_in_use(vm, uid, holder).await?),
            },
            Err(error) => Err(error),
        }
    }

    /// Ends what an earlier attempt left of a snapshot of a machine that runs, unless a task does; no
    /// caller waits for it. It is tried until the machine ends.
    pub(in crate::vm) fn catch_up_snapshot(self: &Arc<Self>, row: &Arc<Container>) {
        let Some(vm) = row.vm() else {
            return;
        };
        let Some(change) = self.parts.disks.change(vm) else {
            return;
        };
        if self.is_merging(vm, change) {
            return;
        }
        // One for each change: that of an earlier one may sleep.
        let kind = match change.step {
            Step::Take { .. } | Step::Revert { .. } => "snapshot",
            Step::Merge { .. } => "merge",
            Step::Pivot { .. } | Step::Resume => "pivot",
        };
        let name = format!("end of the {kind} of {vm} with layer {}", change.layer);
        let Some(alone) = self.parts.locks.try_lock(&name) else {
            return;
        };
        let settled = settle(Arc::downgrade(self), Arc::clone(row), vm, change);
        // Not one that shutdown waits for: the next process goes on.
        tokio::spawn(async move {
            settled.await;
            drop(alone);
        });
    }

    /// Records a reset of a guest for the task that freezes it.
    pub(in crate::vm) fn note_reset(&self, row: &Container) {
        if let Some(vm) = row.vm() {
            self.freezes.note_reset(vm);
        }
    }

    /// Ends what is left of a snapshot whose guest was reset: it is not frozen any more, and what boots now may
    /// have no agent.
    pub(in crate::vm) async fn settle_reset(&self, row: &Container) {
        let disks = &self.parts.disks;
        let Some(vm) = row.vm() else {
            return;
        };
        let Some(change) = disks.change(vm).filter(|change| is_frozen(*change)) else {
            return;
        };
        // A task that is about to freeze the guest may do so after the reset; it has a note of that.
        if self.freezes.has(vm) {
            return;
        }
        let _alone = self.parts.locks.lock(&lock_name(vm)).await;
        if disks.change(vm) != Some(change) {
            return;
        }
        let settled = async {
            disks.set_freezes(vm, change.layer, false).await?;
            self.settle_snapshot(row, vm).await
        };
        report(vm, settled.await);
    }

    /// Ends the change of layers that an earlier attempt left of a machine that runs.
    pub(super) async fn settle_snapshot(&self, row: &Container, vm: VmUid) -> Result<()> {
        let disks = &self.parts.disks;
        let Some(change) = disks.change(vm) else {
            return Ok(());
        };
        if !change.step.makes_layer() {
            return self.settle_interrupted_merge(row, vm, change).await;
        }
        if is_frozen(change) {
            self.thaw(row, vm).await?;
        }
        let _turn = self.disk_lock(vm).await;
        if disks.change(vm) != Some(change) || !disks.is_held_by(vm, &row.id) {
            // The machine ended, and the disk's next user ended the change, or will.
            return Ok(());
        }
        self.end_change(row, vm, change, false).await.map(drop)
    }

    /// Lets the emulator write to the new layer, and records that. `frozen`: the guest has frozen its file systems.
    /// `progress` is of the memory, if the snapshot is to have that.
    async fn switch(
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
                Some(_) => Error::MemoryNotSaved { vm, source },
                None => Error::NotSwitched { vm, source },
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
    async fn end_change(
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

/// Ends what an earlier attempt left of a snapshot or a merge, at first soon and then less often.
async fn settle<P: Platform>(
    containers: Weak<Containers<P>>,
    row: Arc<Container>,
    vm: VmUid,
    change: Change,
) {
    if matches!(change.step, Step::Merge { .. }) {
        // The repetition of its task goes on with it.
        tokio::time::sleep(SELDOM).await;
    }
    let mut backoff = Backoff::new(RETRY, SELDOM);
    loop {
        let wait = {
            let Some(this) = containers.upgrade() else {
                return;
            };
            // A task that takes the snapshot ends it first.
            let _alone = this.parts.locks.lock(&lock_name(vm)).await;
            let now = this.parts.disks.change(vm);
            let now = now.filter(|now| now.layer == change.layer);
            let Some(now) = now.filter(|_| this.parts.disks.is_held_by(vm, &row.id)) else {
                return;
            };
            if !this.is_merging(vm, now) {
                let settled = this.settle_snapshot(&row, vm).await;
                if settled.is_ok() {
                    return;
                }
                report(vm, settled);
            }
            backoff.failed(Instant::now())
        };
        tokio::time::sleep(wait).await;
    }
}

pub(super) fn report(vm: VmUid, settled: Result<()>) {
    if let Err(error) = settled {
        let error = crate::one_line(&error);
        tracing::warn!(%vm, error, "interrupted snapshot not settled yet");
    }
}

/// The name of the lock that is held while a snapshot of a machine that runs is taken, or ended.
pub(super) fn lock_name(vm: VmUid) -> String {
    format!("snapshot of {vm}")
}

/// Whether the guest may have frozen its file systems for a change.
const fn is_frozen(change: Change) -> bool {
    matches!(change.step, Step::Take { freezes: true, .. })
}
