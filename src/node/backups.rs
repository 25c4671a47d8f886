//! Tasks of backups.
//!
//! ```text
//! record of the disk           target                     after a crash
//! -                            .new-BACKUP, empty         starts from the beginning
//! snapshot BACKUP              .new-BACKUP, a part        is copied from the same snapshot again
//! snapshot BACKUP, its digest  .new-BACKUP                the same
//! snapshot BACKUP, its digest  BACKUP                     BACKUP is kept as the base
//! base BACKUP                  BACKUP                     layers that nothing needs are merged
//! ```
//!
//! Invariant: a target that cannot be written to leaves the machine as it is. What an increment is based on is in the same
//! target, whole as far as lengths show, and what the record of the disk says. The machine may run, start and end while its
//! files are copied.
//! Failure: a sentence; nothing of the machine is kept for a backup that was not completed.

use std::sync::Arc;
use std::time::Duration;

use podspec::VmUid;
use service::telemetry;

use super::agenda::Agenda;
use super::task::{Backup, DoneBackup, Failure, Progress, StoredBackup, Task};
use crate::backup::{self, Chain, Draft, Manifest, Original, Parent, Target};
use crate::disk::{self, BackupFiles, DesiredRestore};
use crate::files;
use crate::images::Digest;
use crate::platform::Platform;
use crate::vm;

/// The most files of a chain: what is restored has all of them open at once.
const MOST_FILES: usize = 96;

/// The longest reason of a full backup in bytes.
const REASON: usize = 256;

/// The longest look at a backup that is complete before its task ends for another one, which waits.
const LOOK: Duration = Duration::from_secs(10);

/// What a backup is based on; or why it is a full one.
type Basis = Result<Parent, String>;

impl<P: Platform> Agenda<P> {
    /// Writes a backup, or finds it written.
    pub(super) async fn back_up(
        &self,
        vm: VmUid,
        desired: &Backup,
        progress: Progress,
    ) -> Result<DoneBackup, Failure> {
        let target = self.targets.find(&desired.target, vm, &desired.name)?;
        if let Some(done) = self.found(vm, desired, &target).await? {
            return Ok(done);
        }
        self.disks.known(vm)?;
        target.prepare(desired.uid).await?;
        self.merge_left(vm).await;
        let machines = &self.containers;
        let taken = machines.take_for_backup(vm, desired.uid, desired.quiesce);
        let taken = taken.await;
        taken.map_err(|error| self.not_taken(vm, error))?;
        faultpoint::point("backup.taken");
        let (manifest, sha256) = self.write(vm, desired, &target, progress).await?;
        self.complete(vm, desired).await?;
        let kind = manifest.parent.map_or("full", |_| "incremental");
        let read = manifest.read_bytes;
        let reason = manifest.full_reason.as_str();
        tracing::info!(%vm, backup = %desired.uid, store = desired.target, kind, reason, read, "backup written");
        Ok(DoneBackup::new(&manifest, sha256))
    }

    /// A backup that an earlier attempt has completed. One that is not what the record of the disk says, or that is based
    /// on what is gone, is removed.
    async fn found(
        &self,
        vm: VmUid,
        desired: &Backup,
        target: &Target,
    ) -> Result<Option<DoneBackup>, Failure> {
        let uid = desired.uid;
        match target.manifest(uid).await {
            Ok(None) => return Ok(None),
            Err(error) if error.is_transient() => return Err(error.into()),
            _ => {}
        }
        let chain = match self.written(vm, uid, target).await {
            Ok(chain) => chain,
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                let error = crate::one_line(&error);
                tracing::warn!(%vm, backup = %uid, store = desired.target, error, "backup that an attempt has left removed");
                target.remove(uid, &desired.name).await?;
                return Ok(None);
            }
        };
        chain.check_namespace(&desired.name)?;
        target.settle(uid).await?;
        self.complete(vm, desired).await?;
        let newest = chain.newest();
        Ok(newest.map(|(manifest, sha256)| DoneBackup::new(manifest, *sha256)))
    }

    /// A backup that this node has written, whole as far as lengths show.
    async fn written(
        &self,
        vm: VmUid,
        uid: VmUid,
        target: &Target,
    ) -> Result<Chain, backup::Error> {
        let expected = match self.disks.noted_backup(vm, uid) {
            Some(digits) => Digest::from_hex(&digits).ok(),
            None => self.below_base(vm, uid, target).await?,
        };
        let expected = expected.ok_or(backup::Error::Unknown(uid))?;
        whole(target, uid, Some(expected)).await
    }

    /// The digest of a backup that a later one is based on, which is the base now: its manifest names what is below it.
    async fn below_base(
        &self,
        vm: VmUid,
        uid: VmUid,
        target: &Target,
    ) -> Result<Option<Digest>, backup::Error> {
        let base = self.disks.backup_base(vm);
        let expected = base.map(|base| (base.taken.uid, Digest::from_hex(&base.sha256)));
        let Some((base, Ok(expected))) = expected else {
            return Ok(None);
        };
        match target.chain(base, Some(expected)).await {
            Ok(chain) => Ok(chain.digest_of(uid)),
            Err(error) if error.is_transient() => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// A backup that was complete when its task ended for another one.
    pub(super) async fn completed_backup(&self, vm: VmUid, desired: &Backup) -> Option<DoneBackup> {
        if !self.disks.is_backup_base(vm, desired.uid) {
            return None;
        }
        let target = self.targets.find(&desired.target, vm, &desired.name).ok()?;
        let written = tokio::time::timeout(LOOK, self.written(vm, desired.uid, &target));
        let chain = written.await.ok()?.ok()?;
        chain.check_namespace(&desired.name).ok()?;
        let (manifest, sha256) = chain.newest()?;
        Some(DoneBackup::new(manifest, *sha256))
    }

    /// Says what a user can do about a base that the disk budget has no room beside.
    fn not_taken(&self, vm: VmUid, error: vm::Error) -> Failure {
        let is_over_budget = matches!(
            &error,
            vm::Error::VmDisk(disk::Error::Write(failed)) if failed.is_over_budget()
        );
        let base = self.disks.backup_base(vm).filter(|_| is_over_budget);
        let Some(base) = base else {
            // Unlike a snapshot, a backup waits until a machine that was suspended meanwhile has resumed.
            let is_suspended = matches!(&error, vm::Error::VmDisk(disk::Error::MemoryFits(_)));
            let failure: Failure = error.into();
            return Failure {
                transient: failure.transient || is_suspended,
                ..failure
            };
        };
        let words = format!(
            "{}; the disk counts three times while it has the layer of backup {}: to back it up without, delete that \
             backup with its data",
            crate::one_line(&error),
            base.taken.uid
        );
        Failure::new(&words, true)
    }

    /// Copies what a snapshot has, or what it has above the last backup.
    async fn write(
        &self,
        vm: VmUid,
        desired: &Backup,
        target: &Target,
        progress: Progress,
    ) -> Result<(Manifest, Digest), Failure> {
        let held = Arc::new(self.disks.hold_snapshot(vm, desired.uid).await?);
        self.disks.check_backup(vm, &held).await?;
        let disk = self.disks.known(vm)?;
        let taken = self.disks.snapshot(vm, desired.uid).await?;
        let files = self.disks.backup_files(vm, &held);
        let basis = self.basis(vm, desired, target, &files).await?;
        let originals = match (&basis, files.above_base) {
            (Ok(_), Some(above)) => above,
            _ => files.all,
        };
        self.disks.check_tables(vm, &held, &originals).await?;
        let draft = Draft {
            uid: desired.uid,
            vm,
            name: desired.name.clone(),
            created_at: held.created_at(),
            quiesced: taken.is_some_and(|taken| taken.quiesced),
            running: taken.is_some_and(|taken| taken.running),
            virtual_bytes: held.virtual_bytes(),
            image: disk.image.clone(),
            digest: disk.digest.clone(),
            parent: basis.as_ref().ok().copied(),
            full_reason: basis.err().unwrap_or_default(),
        };
        let all = settled(&originals).await?;
        let mut step = percents(progress, all);
        let written = target.write(draft, originals, &mut step).await?;
        drop(held);
        let noted = self.disks.note_backup(vm, desired.uid, written.1.hex());
        noted.await?;
        target.publish(&written.0).await?;
        Ok(written)
    }

    /// What a backup can be based on.
    async fn basis(
        &self,
        vm: VmUid,
        desired: &Backup,
        target: &Target,
        files: &BackupFiles,
    ) -> Result<Basis, backup::Error> {
        if desired.full {
            return Ok(Err("it was requested".to_owned()));
        }
        let Some(base) = self.disks.backup_base(vm) else {
            return Ok(Err("the disk has no earlier backup".to_owned()));
        };
        let uid = base.taken.uid;
        if uid == desired.uid {
            return Ok(Err("it was written before, and is gone".to_owned()));
        }
        let Some(above) = &files.above_base else {
            return Ok(Err(format!("the disk was reverted since backup {uid}")));
        };
        let expected = Digest::from_hex(&base.sha256).ok();
        let chain = match whole(target, uid, expected).await {
            Ok(chain) => chain,
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                let mut reason = telemetry::bounded(&crate::one_line(&error));
                reason.truncate(reason.floor_char_boundary(REASON));
                return Ok(Err(reason));
            }
        };
        let increments = chain.length().saturating_sub(1);
        if increments >= usize::try_from(desired.most_increments).unwrap_or(usize::MAX) {
            return Ok(Err(format!(
                "{increments} increments are based on each other"
            )));
        }
        let count = chain.count() + above.len();
        if count > MOST_FILES {
            return Ok(Err(format!(
                "the backups would have {count} files together"
            )));
        }
        let parent = chain.newest().map(|(_, sha256)| Parent {
            uid,
            sha256: *sha256,
        });
        Ok(parent.ok_or_else(|| "the disk has no earlier backup".to_owned()))
    }

    /// The backup is in its target: the next one is based on it.
    async fn complete(&self, vm: VmUid, desired: &Backup) -> Result<(), Failure> {
        self.disks.keep_for_backup(vm, desired.uid).await?;
        self.merge_left(vm).await;
        Ok(())
    }

    /// Merges the layers of earlier backups; those that are in use wait for the next one.
    async fn merge_left(&self, vm: VmUid) {
        if let Err(error) = self.containers.merge_unneeded(vm).await {
            let error = crate::one_line(&error);
            tracing::warn!(%vm, error, "layers of earlier backups not merged yet");
        }
    }

    /// Ends what a backup that was not completed has begun.
    pub(super) async fn abandon_backup(
        &self,
        task: &Task,
        desired: &Backup,
    ) -> Result<(), Failure> {
        let abandoned = self.containers.abandon_backup(task.vm, desired.uid);
        Ok(abandoned.await?)
    }

    pub(super) async fn verify_backup(
        &self,
        vm: VmUid,
        stored: &StoredBackup,
        progress: Progress,
    ) -> Result<DoneBackup, Failure> {
        let target = self.targets.find(&stored.target, vm, &stored.name)?;
        let chain = target.chain(stored.uid, stored.digest()).await?;
        chain.check_namespace(&stored.name)?;
        let mut step = percents(progress, chain.bytes());
        let read_bytes = chain.verify(&mut step).await?;
        let newest = chain.newest().map(|(manifest, sha256)| DoneBackup {
            read_bytes,
            ..DoneBackup::new(manifest, *sha256)
        });
        newest.ok_or_else(|| Failure::new("the backup has no manifest", false))
    }

    pub(super) async fn delete_backup(
        &self,
        vm: VmUid,
        stored: &StoredBackup,
    ) -> Result<(), Failure> {
        let removed = match self.targets.find(&stored.target, vm, &stored.name) {
            Ok(target) => target.remove(stored.uid, &stored.name).await,
            Err(error) => Err(error),
        };
        // Without the target, too, and with each answer that is the last one: nothing else releases the layer when the
        // target is gone from the configuration.
        if removed.as_ref().err().is_none_or(releases_layer) {
            let dropped = self.containers.drop_backup(vm, stored.uid).await;
            // Saved memory, say, goes one day.
            dropped.map_err(|error| Failure::new(&crate::one_line(&error), true))?;
        }
        removed.map_err(|error| Failure::new(&crate::one_line(&error), !is_over(&error)))
    }

    pub(super) async fn restore_backup(
        &self,
        vm: VmUid,
        stored: &StoredBackup,
        source: VmUid,
        size: u64,
        progress: Progress,
    ) -> Result<(), Failure> {
        let target = self.targets.find(&stored.target, source, &stored.name)?;
        let desired = DesiredRestore {
            vm,
            name: stored.name.clone(),
            size,
        };
        let chain = async move { target.chain(stored.uid, stored.digest()).await };
        let reported = move |percent| {
            progress.send_replace(percent);
        };
        Ok(self.disks.restore(&desired, chain, reported).await?)
    }
}

/// Whether this node does nothing more for a deletion that has failed: another one that has the target goes on.
const fn is_over(error: &backup::Error) -> bool {
    // A claim without a pod is one that is gone, for which the controller has none; or its pod ended a moment ago.
    let has_none = matches!(
        error,
        backup::Error::NoTarget(_) | backup::Error::NotMounted { .. }
    );
    has_none || !error.is_transient()
}

/// Whether the layer of a backup goes after this failure to remove that. A request of another namespace releases nothing.
const fn releases_layer(error: &backup::Error) -> bool {
    is_over(error) && !matches!(error, backup::Error::OtherNamespace { .. })
}

/// A chain whose files have the lengths in their manifests.
async fn whole(
    target: &Target,
    uid: VmUid,
    expected: Option<Digest>,
) -> Result<Chain, backup::Error> {
    let chain = target.chain(uid, expected).await?;
    chain.check_lengths().await?;
    Ok(chain)
}

/// Writes these files to the node's own device, so that no later layer counts from what a power cut takes back; returns
/// what their lengths are together.
async fn settled(originals: &[Original]) -> Result<u64, Failure> {
    let mut all: u64 = 0;
    for original in originals {
        let path = original.path.clone();
        let settle = move || {
            let file = std::fs::File::open(&path)?;
            file.sync_all()?;
            Ok(file.metadata()?.len())
        };
        let settled = tokio::task::spawn_blocking(settle).await;
        let settled = settled.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        let failed = files::failed("write to the device", &original.path);
        let bytes = settled.map_err(failed).map_err(backup::Error::from)?;
        all = all.saturating_add(bytes);
    }
    Ok(all)
}

/// Reports how much of all was done.
fn percents(progress: Progress, all: u64) -> impl FnMut(u64) + Send {
    let mut done: u64 = 0;
    move |bytes| {
        done = done.saturating_add(bytes);
        let percent = u128::from(done) * 100 / u128::from(all.max(1));
        progress.send_replace(u8::try_from(percent).unwrap_or(100).min(100));
    }
}

#[cfg(test)]
mod tests {
    use testfs::StrictDisk;

    use super::*;
    use crate::images::Format;

    #[tokio::test]
    #[ignore = "needs root"]
    async fn no_power_cut_changes_a_layer_that_was_backed_up() {
        let disk = StrictDisk::new().unwrap();
        let path = disk.path().join("layer");
        std::fs::write(&path, "old").unwrap();
        disk.settle().unwrap();
        std::fs::write(&path, "written by the guest").unwrap();
        let format = Format::Qcow2;
        assert_eq!(settled(&[Original { path, format }]).await.unwrap(), 20);
        let left = disk.cut().unwrap();
        let read = std::fs::read_to_string(left.path().join("layer"));
        assert_eq!(read.unwrap(), "written by the guest");
    }
}
