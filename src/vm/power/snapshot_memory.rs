//! The memory of a guest in a snapshot of its disk.
//!
//! ```text
//! record              emulator                           guest
//! change N, memory    writes memory to its file          runs, or stands still
//! change N, memory    has written all; writes to A       stands still
//! change N, memory    writes to N                        stands still
//! change N, memory    writes to N                        runs
//! memory whole        writes to N                        runs
//! ```
//!
//! Invariant: libvirt writes the memory and switches the disk in one request, and the guest stands still in between; with
//! a switch that took place, the memory is of its moment. No request but this one gives the disk that layer. Nothing here
//! pauses a guest: libvirt does, and lets it run again, also after its own restart.
//! Failure: [`LayerError::MemoryNotSaved`] leaves no snapshot and a guest that runs on. A guest that changes its memory faster
//! than it is written stands still for a second attempt.

use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libvirt::{Hypervisor, MemorySwitch, Pause, Power};
use podspec::VmUid;

use super::merge::pause_name;
use crate::disk::{self, Change, SnapshotMemory, Step};
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::power::LayerError;
use crate::vm::service::Containers;
use crate::vm::shares::ShareError;
use crate::vm::stops::Stop;

/// Time between two looks at the file that is written.
const LOOK: Duration = Duration::from_millis(500);

/// Time for libvirt to end what writes memory, before it is left to the next attempt.
const END: Duration = Duration::from_secs(60);

/// What gets percents.
pub(super) type Progress<'a> = &'a (dyn Fn(u8) + Send + Sync);

/// Why the writing of memory is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The file has all that it may have.
    Full,
    /// The pod is stopped.
    Stop,
}

/// What became of a request to write memory.
struct Attempt {
    saved: libvirt::Result<()>,
    /// Why it was ended, if it was.
    cause: Option<Cause>,
}

impl<P: Platform> Containers<P> {
    /// The memory that a snapshot of a machine is about to have. `paused`: its guest does not run.
    pub(super) fn memory_to_save(
        &self,
        row: &Container,
        vm: VmUid,
        paused: bool,
    ) -> Result<SnapshotMemory> {
        if !row.spec.shares.is_empty() {
            return Err(ShareError::NotSaved(vm).into());
        }
        let mut blocks = row.spec.blocks.iter().map(|disk| disk.read_only);
        let mut files = row.spec.file_disks.iter().map(|disk| disk.read_only);
        if !(blocks.all(|read_only| read_only) && files.all(|read_only| read_only)) {
            return Err(LayerError::DisksNotSaved(vm).into());
        }
        Ok(SnapshotMemory {
            paused,
            nics: self.nics(row),
            ..SnapshotMemory::about_to_be_written(memory_of(row))
        })
    }

    /// Lets the emulator write all memory to its file, and then write to the new layer.
    pub(super) async fn switch_with_memory(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
        memory: &SnapshotMemory,
        progress: Progress<'_>,
    ) -> libvirt::Result<()> {
        let Step::Take { snapshot, .. } = change.step else {
            return Ok(());
        };
        let disks = &self.parts.disks;
        let to = MemorySwitch {
            disk: disks.new_layer(vm, change),
            memory: disks.snapshot_memory(vm, snapshot.uid),
            runs: true,
        };
        let stop = self.stops.watch(&row.sandbox);
        let most = memory.bytes;
        let first = self
            .switch_once(row, to.clone(), most, &stop, progress)
            .await;
        if first.saved.is_ok() || first.cause != Some(Cause::Full) {
            return first.saved;
        }
        // It may have been too late to end it.
        let file = self.parts.hypervisor.root_file(row.domain()).await?;
        if file.is_some_and(|file| file == to.disk) {
            return first.saved;
        }
        tracing::info!(%vm, "guest stands still while its memory is saved: it changes that too fast");
        let to = MemorySwitch { runs: false, ..to };
        let second = self.switch_once(row, to, most, &stop, progress).await;
        second.saved
    }

    async fn switch_once(
        &self,
        row: &Container,
        to: MemorySwitch,
        most: u64,
        stop: &Stop,
        progress: Progress<'_>,
    ) -> Attempt {
        let driver = &self.parts.hypervisor;
        let domain = row.domain();
        let file = to.memory.clone();
        let mut saving = pin!(driver.switch_root_with_memory(domain, to));
        let cause = tokio::select! {
            biased;
            saved = &mut saving => return Attempt { saved, cause: None },
            () = follow(&file, most, memory_of(row), progress) => Cause::Full,
            () = stop.requested() => Cause::Stop,
        };
        let is_over = AtomicBool::new(false);
        let saving = async {
            let saved = saving.await;
            is_over.store(true, Ordering::Release);
            saved
        };
        let aborting = async {
            // Again until it has an effect: libvirt may not have begun. No request is left behind, since it would end the
            // next one.
            while !is_over.load(Ordering::Acquire) {
                if let Err(e) = driver.abort_save(domain).await {
                    let error = crate::one_line(&e);
                    tracing::debug!(container = %row.id, error, "snapshot with memory not ended yet");
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let ended = tokio::join!(saving, aborting);
        Attempt {
            saved: ended.0,
            cause: Some(cause),
        }
    }

    /// Ends what writes memory for a process that has gone, or for a request without an answer. Until then nothing is known
    /// of the switch, nothing looks at the size of the file, and other requests of the machine wait.
    pub(super) async fn end_left_save(&self, row: &Container, vm: VmUid) -> Result<()> {
        let driver = &self.parts.hypervisor;
        let ending = async {
            while driver.end_save(row.domain()).await? {
                tokio::time::sleep(LOOK).await;
            }
            Ok::<_, libvirt::Error>(())
        };
        let in_time = tokio::time::timeout(END, ending).await;
        let doing = "saved for a snapshot by libvirt, which has not ended that yet";
        let busy = disk::Error::Busy { vm, doing };
        in_time
            .map_err(|_| busy)?
            .map_err(hypervisor("stop saving"))
    }

    /// Lets the guest run, or not, as its owner has it, after its memory was saved.
    pub(super) async fn settle_guest(
        &self,
        row: &Container,
        vm: VmUid,
        memory: &SnapshotMemory,
    ) -> Result<()> {
        let driver = &self.parts.hypervisor;
        let _still = self.parts.locks.lock(&pause_name(vm)).await;
        let row = self.parts.table.get(&row.id);
        let row = row.ok_or(Error::NotRunning(vm))?;
        let power = driver.power(row.domain()).await;
        match power.map_err(hypervisor("look at"))? {
            Some(Power::Paused(Pause::Asked)) if !row.held && !memory.paused => {
                let resumed = driver.resume(row.domain()).await;
                resumed.map_err(hypervisor("resume"))?;
            }
            // It was paused meanwhile, and libvirt has let it run at the end.
            Some(Power::On) if row.held => {
                let paused = driver.suspend(row.domain()).await;
                return paused.map_err(hypervisor("pause"));
            }
            Some(Power::On) => {}
            Some(Power::Paused(_) | Power::Off) | None => return Ok(()),
        }
        // It stood still, perhaps for long.
        self.set_guest_time(&row);
        Ok(())
    }
}

/// Returns when the file has more bytes than it may have.
async fn follow(file: &Path, most: u64, memory: u64, progress: Progress<'_>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let written = length(file).await;
        if written > most {
            return;
        }
        progress(percent(written, memory));
    }
}

async fn length(file: &Path) -> u64 {
    let found = tokio::fs::metadata(file).await;
    found.map_or(0, |file| file.len())
}

/// The most memory that the guest of a machine can have, in bytes.
fn memory_of(row: &Container) -> u64 {
    let machine = &row.spec.machine;
    machine.max_memory.unwrap_or(machine.memory).get() << 20
}

fn percent(written: u64, all: u64) -> u8 {
    let percent = written.saturating_mul(100) / all.max(1);
    u8::try_from(percent.min(99)).unwrap_or(99)
}
