//! Discards saved memory.
//!
//! Invariant: memory that was discarded is never resumed, and memory that a start takes back is not
//! discarded: whichever comes second is refused. While one caller discards, the disk gets no new
//! container and the one that has it does not start.
//! Failure: [`disk::Error::Restoring`]; what was begun and not ended is memory that counts as used.

use podspec::VmUid;

use crate::disk;
use crate::locks::Guard;
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::service::Containers;
use crate::vm::state::Phase;

impl<P: Platform> Containers<P> {
    /// Removes the memory beside a disk; success when there is none.
    pub(super) async fn discard_memory(&self, vm: VmUid) -> Result<()> {
        let disks = &self.parts.disks;
        loop {
            let Some(seen) = disks.get(vm).filter(|disk| disk.memory.is_some()) else {
                return Ok(());
            };
            let Some(holder) = seen.holder.clone() else {
                let _turn = self.disk_lock(vm).await;
                if disks.get(vm).is_some_and(|disk| disk.holder.is_some()) {
                    continue;
                }
                return Ok(disks.drop_memory(vm).await?);
            };
            let restoring = || disk::Error::Restoring {
                vm,
                holder: holder.clone(),
            };
            // A start holds the lock that is awaited next for as long as libvirt reads.
            if self.is_starting(vm) {
                return Err(restoring().into());
            }
            let sandbox = self.parts.table.get(&holder).map(|row| row.sandbox.clone());
            let _lock = match sandbox {
                Some(sandbox) => Some(self.parts.locks.lock(sandbox.as_str()).await),
                None => None,
            };
            let _turn = self.disk_lock(vm).await;
            if !disks.is_held_by(vm, &holder) {
                continue;
            }
            self.parts.table.aside().refuse(holder.as_str())?;
            let row = self.parts.table.get(&holder);
            let runs = row.is_some_and(|row| row.phase.runs());
            if self.is_starting(vm) || runs && seen.has_memory() {
                return Err(restoring().into());
            }
            return Ok(disks.drop_memory(vm).await?);
        }
    }

    /// Whether the container that has the disk of a virtual machine is being started, or was when
    /// the daemon ended.
    pub(super) fn is_starting(&self, vm: VmUid) -> bool {
        let holder = self.parts.disks.get(vm).and_then(|d| d.holder.clone());
        let row = holder.and_then(|holder| self.parts.table.get(&holder));
        row.is_some_and(|row| row.phase == Phase::Starting)
    }

    /// Held while the disk of a virtual machine is given to a container, or what is beside it is
    /// discarded. Taken after the sandbox's lock.
    pub(in crate::vm) async fn disk_lock(&self, vm: VmUid) -> Guard {
        self.parts.locks.lock(&format!("disk of {vm}")).await
    }
}
