//! Saved memory beside a disk.
//!
//! Invariant: it has its name, and the phase Whole, only when all of it is written; before the
//! guest continues from it the phase is Resumed, which leads nowhere but to its removal.
//! Failure: a file that was not finished is removed; one that was is found again by its own mark.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use podspec::VmUid;

use super::error::{Error, Result};
use super::model::{Memory, MemoryPhase, SavedNic};
use super::{Disks, unfinished};
use crate::files;

impl Disks {
    /// The file of saved memory.
    pub fn memory_file(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join("memory.save")
    }

    /// The file while it is written.
    pub fn unfinished_memory(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join("memory.new")
    }

    /// Records that memory is about to be written. What was left of an earlier attempt is removed
    /// before that: it must never be taken for the new one.
    pub async fn begin_memory(&self, vm: VmUid, nics: Vec<SavedNic>, paused: bool) -> Result<()> {
        self.known(vm)?;
        self.drop_memory(vm).await?;
        self.remove_memory(vm).await?;
        let memory = Memory {
            phase: MemoryPhase::Writing,
            paused,
            nics,
            snapshot: None,
        };
        let begun = self.records.change(&vm, |disk| {
            disk.memory = Some(memory);
            true
        });
        begun.await?.ok_or(Error::Missing(vm))?;
        faultpoint::point("node.save.recorded");
        Ok(())
    }

    /// Settles memory whose writing is over, however it ended: whole, or gone. True when it is
    /// whole.
    pub async fn settle_memory(&self, vm: VmUid) -> Result<bool> {
        let disk = self.known(vm)?;
        match disk.memory.as_ref().map(|memory| memory.phase) {
            None => return Ok(false),
            Some(MemoryPhase::Whole) => return Ok(true),
            Some(MemoryPhase::Resumed) => {
                self.drop_memory(vm).await?;
                return Ok(false);
            }
            Some(MemoryPhase::Writing) => {}
        }
        let from = self.unfinished_memory(vm);
        let to = self.memory_file(vm);
        let name = to.clone();
        let named = tokio::task::spawn_blocking(move || name_if_whole(&from, &to)).await;
        let named = named.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        if !named.map_err(files::failed("name", &name))? {
            self.drop_memory(vm).await?;
            return Ok(false);
        }
        faultpoint::point("node.save.renamed");
        let whole = self.records.change(&vm, |disk| match &mut disk.memory {
            Some(memory) if memory.phase == MemoryPhase::Writing => {
                memory.phase = MemoryPhase::Whole;
                true
            }
            // Another caller settled it, and may have used it already.
            _ => false,
        });
        whole.await?;
        Ok(self.get(vm).is_some_and(|disk| disk.has_memory()))
    }

    /// Records that the guest is about to resume from the memory; once, and never while another
    /// caller discards it.
    pub async fn use_memory(&self, vm: VmUid) -> Result<()> {
        let used = self.records.change(&vm, |disk| {
            let whole = disk.has_memory();
            if let Some(memory) = &mut disk.memory {
                memory.phase = MemoryPhase::Resumed;
            }
            whole
        });
        used.await?.map(drop).ok_or(Error::NoMemory(vm))
    }

    /// Removes the memory; success when there is none.
    pub async fn drop_memory(&self, vm: VmUid) -> Result<()> {
        let Some(disk) = self.get(vm) else {
            return Ok(());
        };
        if disk.memory.is_none() {
            return Ok(());
        }
        // Not to be resumed from here on, whatever is left of it.
        self.retire_memory(vm).await?;
        self.remove_memory(vm).await?;
        faultpoint::point("node.memory.removed");
        if disk.holder.is_none() {
            // The image was kept for the guest that would have gone on.
            self.remove_seed(vm).await?;
        }
        let gone = self.records.change(&vm, |disk| {
            disk.memory = None;
            true
        });
        gone.await?;
        Ok(())
    }

    /// Removes the image that a guest found its data on; success when there is none.
    pub async fn remove_seed(&self, vm: VmUid) -> Result<()> {
        let file = self.seed_file(vm);
        remove(&unfinished(&file)).await?;
        remove(&file).await
    }

    /// Removes the files, also over a power cut.
    async fn remove_memory(&self, vm: VmUid) -> Result<()> {
        remove(&self.unfinished_memory(vm)).await?;
        remove(&self.memory_file(vm)).await?;
        let folder = self.folder(vm);
        let path = folder.clone();
        let sync = move || match File::open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            folder => folder?.sync_all(),
        };
        let synced = tokio::task::spawn_blocking(sync).await;
        let synced = synced.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        Ok(synced.map_err(files::failed("write", &folder))?)
    }

    async fn retire_memory(&self, vm: VmUid) -> Result<()> {
        let set = self.records.change(&vm, |disk| match &mut disk.memory {
            Some(memory) => {
                memory.phase = MemoryPhase::Resumed;
                true
            }
            None => false,
        });
        set.await?.map(drop).ok_or(Error::NoMemory(vm))
    }
}

async fn remove(file: &Path) -> Result<()> {
    match tokio::fs::remove_file(file).await {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(files::failed("remove", file)(e).into()),
        _ => Ok(()),
    }
}

fn name_if_whole(from: &Path, to: &Path) -> std::io::Result<bool> {
    if libvirt::is_saved_memory(from) {
        File::open(from)?.sync_all()?;
        service::files::place(from, to)?;
    }
    Ok(libvirt::is_saved_memory(to))
}
