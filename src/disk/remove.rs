//! Removes disks.
//!
//! Invariant: the record is marked before the first file is removed, and is removed last, when no
//! power cut brings a file back; without a record, only a task removes a disk that was whole.
//! Failure: the record stays, and the removal is repeated.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::PoisonError;

use podspec::VmUid;

use super::Disks;
use super::error::{Error, Result};
use super::model::Phase;
use crate::files;

impl Disks {
    /// Removes a disk that is not ready; one that is, stays.
    pub async fn undo(&self, vm: VmUid) -> Result<()> {
        // What was begun may just be on its way to the database.
        self.records.settled().await;
        match self.get(vm).map(|disk| disk.phase) {
            Some(Phase::Making) => self.take_away(vm, Phase::Making).await,
            _ => Ok(()),
        }
    }

    /// Removes a disk that has no holder, with the memory beside it; success when there is none.
    pub async fn delete(&self, vm: VmUid) -> Result<()> {
        let Some(disk) = self.records.readable(&vm)? else {
            return self.remove_unrecorded(vm).await;
        };
        if let Some(holder) = disk.holder.clone() {
            return Err(Error::InUse { vm, holder });
        }
        let marked = self.records.change(&vm, |disk| {
            let free = disk.holder.is_none();
            disk.phase = Phase::Deleting;
            free
        });
        if marked.await?.is_none() {
            let doing = "taken by a machine";
            return Err(Error::Busy { vm, doing });
        }
        faultpoint::point("node.delete.recorded");
        self.take_away(vm, Phase::Deleting).await?;
        tracing::info!(%vm, "disk removed");
        Ok(())
    }

    async fn take_away(&self, vm: VmUid, phase: Phase) -> Result<()> {
        self.remove_files(vm).await?;
        faultpoint::point("node.delete.files");
        self.let_image_go(vm).await?;
        self.records
            .remove_if(&vm, |disk| disk.phase == phase)
            .await?;
        faultpoint::point("node.delete.gone");
        Ok(())
    }

    /// Once for each disk is enough.
    fn report_unrecorded(&self, vm: VmUid, file: &Path) {
        let reported = self.unrecorded.lock();
        if reported.unwrap_or_else(PoisonError::into_inner).insert(vm) {
            tracing::warn!(%vm, file = %file.display(), "unrecorded disk left in place");
        }
    }

    /// Removes what is there of a disk without a record; one that is being made has a record.
    async fn remove_unrecorded(&self, vm: VmUid) -> Result<()> {
        let _turn = self.turns.lock(&vm).await;
        if self.get(vm).is_some() {
            return Ok(());
        }
        self.aside().refuse_missing(&vm.to_string())?;
        self.remove_files(vm).await
    }

    async fn remove_files(&self, vm: VmUid) -> Result<()> {
        let folder = self.folder(vm);
        let _turn = self.manifests.turns.lock(&vm).await;
        self.manifests.forget(vm);
        match tokio::fs::remove_dir_all(&folder).await {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(files::failed("remove", &folder)(e).into());
            }
            _ => {}
        }
        // A disk that comes back without its record would be taken for a user's.
        let root = self.root.clone();
        let synced = tokio::task::spawn_blocking(move || service::files::sync_directory(&root));
        let synced = synced.await;
        let synced = synced.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        synced.map_err(files::failed("write", &self.root))?;
        Ok(self.qemu_img.forget(&folder).await?)
    }

    /// Removes the directories of disks that no record accounts for and that were never whole. A
    /// record is there before its files and goes after them: a complete disk without one is a
    /// user's data, and the database was lost.
    pub async fn collect(&self) -> Result<()> {
        self.collect_copies().await?;
        let failed = || files::failed("look through", &self.root);
        let mut entries = tokio::fs::read_dir(&self.root).await.map_err(failed())?;
        while let Some(entry) = entries.next_entry().await.map_err(failed())? {
            let name = entry.file_name();
            let vm = name.to_str().and_then(|name| name.parse::<VmUid>().ok());
            // A file with another name is not removed.
            let is_unknown = |vm: &VmUid| self.get(*vm).is_none() && !self.may_be_aside(*vm);
            let Some(vm) = vm.filter(is_unknown) else {
                continue;
            };
            let file = self.file(vm);
            if tokio::fs::try_exists(&file)
                .await
                .map_err(files::failed("look for", &file))?
            {
                self.report_unrecorded(vm, &file);
                continue;
            }
            tracing::warn!(%vm, "incomplete disk without a record removed");
            self.remove_unrecorded(vm).await?;
        }
        self.collect_layers().await
    }
}
