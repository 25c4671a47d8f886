//! Which backups of a schedule are deleted.
//!
//! Invariant: pure up to the deletions. What is kept is kept for each disk: a machine that is made again under its name
//! pushes out nothing of the disk before. Only backups that a machine can be restored from, as far as that is known,
//! count; one that is kept, or that a machine is to be made from, keeps those that it builds upon, also where these are none
//! of the schedule. A damaged backup is kept at least as long as it would be if it was good. Each deletion names UID and
//! version of what was read.
//! Failure: what the API server refuses is repeated with the pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::{BackupRetention, VirtualMachineBackup, VirtualMachineBackupSchedule};
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt};

use super::{MOST, Work};
use crate::context::{Context, Key, Relation};
use crate::flow::Outcome;
use crate::reconcile::answers::{is_conflict, is_gone};
use crate::reconcile::backup::{Health, ancestors, health};

/// Backups of a disk that failed, or were found damaged, of which the newest are kept.
const FAILED: usize = 3;
/// Disks after which other passes have a turn.
const BATCH: usize = 100;

/// A disk, as backups name it; those that no node was requested to make name none.
type Disk = (String, Option<String>);

/// Deletes those that are not kept.
pub(super) async fn run(
    ctx: &Context,
    schedule: &VirtualMachineBackupSchedule,
    now: i64,
    work: &mut Work,
) -> Outcome<()> {
    let key = Key::from_object(schedule);
    let api = Api::<VirtualMachineBackup>::namespaced(ctx.client.clone(), &key.namespace);
    let is_needed = |backup: &VirtualMachineBackup| {
        let machines = Relation::Backup(Key::from_object(backup));
        !ctx.stores.vms_with(&machines).is_empty()
    };
    let mut left = MOST;
    for (number, (disk, own)) in by_disk(ctx, &key).into_iter().enumerate() {
        if number % BATCH == BATCH - 1 {
            tokio::task::yield_now().await;
        }
        let all = ctx.stores.backups_of(&Key::new(&key.namespace, disk.0));
        let retention = &schedule.spec.retention;
        for backup in superfluous(own, &all, retention, now, is_needed) {
            if left == 0 {
                work.is_cut = true;
                return Ok(());
            }
            left -= 1;
            delete(&api, &backup, work).await;
        }
    }
    Ok(())
}

/// The backups of the schedule, by disk.
fn by_disk(ctx: &Context, schedule: &Key) -> BTreeMap<Disk, Vec<Arc<VirtualMachineBackup>>> {
    let mut disks: BTreeMap<Disk, Vec<Arc<VirtualMachineBackup>>> = BTreeMap::new();
    for backup in ctx.stores.backups_of_schedule(schedule) {
        let status = backup.status.as_ref();
        let uid = status.and_then(|status| status.disk_uid.clone());
        let disk = (backup.spec.vm_name.clone(), uid);
        disks.entry(disk).or_default().push(backup);
    }
    disks
}

async fn delete(api: &Api<VirtualMachineBackup>, backup: &VirtualMachineBackup, work: &mut Work) {
    let only_this = DeleteParams::background().preconditions(Preconditions {
        uid: backup.uid(),
        resource_version: backup.resource_version(),
    });
    let name = backup.name_any();
    match api.delete(&name, &only_this).await {
        Ok(_) => {}
        // It changed meanwhile, and its event wakes the schedule.
        Err(error) if is_gone(&error) || is_conflict(&error) => {}
        Err(source) => {
            let text = format!("failed to delete backup {name}");
            let error = anyhow::Error::new(source).context(text);
            work.failure.get_or_insert(error);
        }
    }
}

/// Those of the schedule's own backups of a disk that are not kept. `all`: every backup of the machine.
fn superfluous(
    mut own: Vec<Arc<VirtualMachineBackup>>,
    all: &[Arc<VirtualMachineBackup>],
    retention: &BackupRetention,
    now: i64,
    is_needed: impl Fn(&VirtualMachineBackup) -> bool,
) -> Vec<Arc<VirtualMachineBackup>> {
    own.retain(|backup| backup.metadata.deletion_timestamp.is_none());
    let place = |one: &Arc<VirtualMachineBackup>| {
        let made = one.creation_timestamp();
        (made.map(|at| at.0), one.name_any())
    };
    own.sort_by_cached_key(place);
    own.reverse();
    let last = usize::try_from(retention.keep_last.max(1)).unwrap_or(usize::MAX);
    let time = retention.keep_for.as_deref();
    let time = time.and_then(lifecycle::power::duration);
    let oldest = time.map_or(now, |time| {
        now.saturating_sub(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
    });
    let is_old = |backup: &VirtualMachineBackup| {
        let made = backup.creation_timestamp();
        made.is_some_and(|at| at.0.as_second() <= oldest)
    };
    let good = own.iter().filter(|one| health(one, all) == Health::Good);
    let good: Vec<_> = good.collect();
    // What was found may be refuted, say when a target is mounted again: a damaged one goes no sooner than it would if it
    // was good.
    let limit = good.get(last - 1).map(|oldest| place(oldest));
    let is_outlived = |one: &Arc<VirtualMachineBackup>| {
        let has_enough = limit.as_ref().is_some_and(|limit| place(one) < *limit);
        has_enough && is_old(one) && health(one, all) == Health::Damaged
    };
    let bad = own.iter();
    let bad = bad.filter(|one| one.has_failed() || is_outlived(one));
    let good = good.iter().copied().skip(last);
    let good = good.filter(|backup| is_old(backup));
    let mut candidates: Vec<_> = good.chain(bad.skip(FAILED)).cloned().collect();
    candidates.retain(|backup| !is_needed(backup));
    let uids: BTreeSet<_> = candidates.iter().filter_map(|one| one.uid()).collect();
    let is_candidate =
        |one: &VirtualMachineBackup| one.uid().is_some_and(|uid| uids.contains(&uid));
    let kept = all.iter().filter(|one| !is_candidate(one));
    let needed = kept.flat_map(|one| ancestors(one, all));
    let needed: BTreeSet<_> = needed.filter_map(|one| one.uid()).collect();
    candidates.retain(|one| one.uid().is_none_or(|uid| !needed.contains(&uid)));
    candidates
}

#[cfg(test)]
mod tests;
