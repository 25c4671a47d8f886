//! Starts a machine from saved memory.
//!
//! Invariant: the guest is restored paused; before it runs one instruction the memory counts as
//! used, so that no start ever resumes it again on a disk that has moved on.
//! Failure: until then the memory stays and the start may be repeated, also where the stop of the pod
//! ended the restore. A machine that was lost between the two boots afresh next time, as after a
//! power cut.

use std::pin::{Pin, pin};
use std::time::Duration;

use libvirt::{Hypervisor, Pause, Power};
use podspec::VmUid;

use crate::disk;
use crate::disk::MemoryPhase;
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::power::LayerError;
use crate::vm::service::Containers;
use crate::vm::stops::Stop;

/// Time between two looks at a restore that an earlier process began, or that is to end.
const LOOK: Duration = Duration::from_millis(500);

/// How long such a restore is waited for before it is left to the next round.
const TIMEOUT: Duration = Duration::from_secs(60);

impl<P: Platform> Containers<P> {
    pub(in crate::vm) async fn resume_memory(
        &self,
        row: &Container,
        vm: VmUid,
        xml: String,
        stop: &Stop,
    ) -> Result<()> {
        let file = self.parts.disks.memory_file(vm);
        let driver = &self.parts.hypervisor;
        let mut restored = pin!(driver.restore(xml, file, stop.requested()));
        let restored = tokio::select! {
            biased;
            restored = &mut restored => restored,
            () = stop.requested() => {
                self.end_restore(row, restored).await;
                return Err(Error::Stopped(row.id.clone()));
            }
        };
        restored.map_err(|e| self.not_restored(row, vm, e))?;
        faultpoint::point("node.resume.restored");
        self.parts.disks.use_memory(vm).await?;
        self.go_on(row, vm).await
    }

    fn not_restored(&self, row: &Container, vm: VmUid, source: libvirt::Error) -> Error {
        let disk = self.parts.disks.get(vm);
        let memory = disk.as_ref().and_then(|disk| disk.memory.as_ref());
        let snapshot = memory.and_then(|memory| memory.snapshot);
        match (self.unless_stopped(row, "restore", source), snapshot) {
            (Error::Hypervisor { source, .. }, Some(snapshot)) => {
                Error::from(LayerError::NotResumed {
                    vm,
                    snapshot,
                    source,
                })
            }
            (error, _) => error,
        }
    }

    /// Ends a restore that has begun, which may read memory for an hour: only the end of the emulator
    /// ends it. libvirt may not have one yet, so that the kill is repeated. However the restore ends,
    /// the guest has not run and its memory stays.
    async fn end_restore(
        &self,
        row: &Container,
        mut restored: Pin<&mut impl Future<Output = libvirt::Result<()>>>,
    ) {
        let mut is_reported = false;
        loop {
            let killed = self.parts.hypervisor.destroy(row.domain()).await;
            if let Err(e) = killed
                && !is_reported
            {
                is_reported = true;
                let error = crate::one_line(&e);
                tracing::warn!(container = %row.id, error, "restore not ended: the stop waits for it");
            }
            let ended = tokio::time::timeout(LOOK, restored.as_mut());
            if ended.await.is_ok() {
                return;
            }
        }
    }

    /// Whether no guest has continued from the memory of the machine.
    pub(in crate::vm) fn has_unused_memory(&self, row: &Container) -> bool {
        let disk = row.vm().and_then(|vm| self.parts.disks.get(vm));
        disk.is_some_and(|disk| disk.has_memory())
    }

    /// Finishes what an earlier process left of a start from saved memory.
    pub(in crate::vm) async fn settle_resume(&self, row: &Container) -> Result<()> {
        match row.vm() {
            Some(vm) if row.spec.instance.restore => {
                self.await_emulator(row).await?;
                let disks = &self.parts.disks;
                if disks.get(vm).is_some_and(|disk| disk.has_memory()) {
                    disks.use_memory(vm).await?;
                }
                self.go_on(row, vm).await
            }
            _ => Ok(()),
        }
    }

    /// Lets a restored guest run, and removes the memory, which counts as used already. Without any
    /// the guest was let run before.
    async fn go_on(&self, row: &Container, vm: VmUid) -> Result<()> {
        let disks = &self.parts.disks;
        let Some(memory) = disks.get(vm).and_then(|disk| disk.memory.clone()) else {
            return Ok(());
        };
        faultpoint::point("node.resume.used");
        if !memory.paused && !row.spec.instance.start_paused {
            let pulled = self.pull_moved(row, &memory).await;
            let resumed = self.parts.hypervisor.resume(row.domain()).await;
            resumed.map_err(hypervisor("resume"))?;
            self.set_guest_time(row);
            self.plug_in(row, pulled).await;
        }
        faultpoint::point("node.resume.runs");
        Ok(disks.drop_memory(vm).await?)
    }

    /// Waits until libvirt has done with what it does by itself.
    async fn await_emulator(&self, row: &Container) -> Result<()> {
        let waiting = async {
            loop {
                let power = self.parts.hypervisor.power(row.domain()).await;
                match power.map_err(hypervisor("look for"))? {
                    Some(Power::Paused(Pause::Passing)) => tokio::time::sleep(LOOK).await,
                    _ => return Ok(()),
                }
            }
        };
        let in_time = tokio::time::timeout(TIMEOUT, waiting).await;
        in_time.unwrap_or_else(|_| Err(Error::StillRunning(row.id.clone())))
    }
}

impl disk::Disks {
    /// Removes memory that a guest has continued from; other memory stays.
    pub(in crate::vm) async fn settle_used_memory(&self, vm: VmUid) -> disk::Result<()> {
        let memory = self.get(vm).and_then(|disk| disk.memory.clone());
        match memory.map(|memory| memory.phase) {
            Some(MemoryPhase::Resumed) => self.drop_memory(vm).await,
            _ => Ok(()),
        }
    }
}
