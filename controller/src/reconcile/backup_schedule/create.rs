//! Creates a backup of each machine of a schedule for one of its times.
//!
//! Invariant: a machine gets no other backup while its last one by the schedule is still to be made.
//! Failure: a machine of which the API server refuses a backup stops no other one; the first refusal is the result, and the
//! next pass tries again, beginning with another machine.

use std::sync::Arc;

use crds::conditions::{self, CREATED, READY, is_true};
use crds::names::{BACKUP_SCHEDULE_LABEL, BACKUP_VM_UID};
use crds::{
    BackupMode, BackupType, VirtualMachine, VirtualMachineBackup, VirtualMachineBackupSchedule,
    VirtualMachineBackupSpec,
};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use sha2::{Digest, Sha256};

use super::{MOST, WRITE_FAILED, Work};
use crate::context::{Context, Key};
use crate::flow::Outcome;
use crate::reconcile::answers::{is_conflict, is_ending};
use crate::reconcile::vm::disk_uid;

/// Backups that a pass requests, also those that the API server refuses.
const REQUESTED: usize = 10 * MOST;

pub(super) async fn run(
    ctx: &Context,
    schedule: &VirtualMachineBackupSchedule,
    due: i64,
    work: &mut Work,
) -> Outcome<()> {
    let namespace = schedule.namespace().unwrap_or_default();
    let api = Api::<VirtualMachineBackup>::namespaced(ctx.client.clone(), &namespace);
    let mut left = MOST;
    let mut requested = 0;
    let mut skipped = Vec::new();
    let mut machines = machines(ctx, schedule);
    if has_failed(schedule) && !machines.is_empty() {
        // So that those in front keep none behind them from its turn.
        let now = usize::try_from((ctx.clock)().0.as_second()).unwrap_or_default();
        let first = now % machines.len();
        machines.rotate_left(first);
    }
    for vm in machines {
        let name = name(schedule, &vm.name_any(), due);
        let key = Key::new(&namespace, &name);
        if ctx.stores.backups.get(&key.reference()).is_some() {
            continue;
        }
        let known = of_machine(ctx, schedule, &vm);
        if let Some(open) = known.iter().find(|backup| backup.is_open()) {
            skipped.push(format!(
                "machine {} gets no backup at this time: backup {} of it is still to be made",
                vm.name_any(),
                open.name_any()
            ));
            continue;
        }
        if left == 0 {
            work.is_cut = true;
            return Ok(());
        }
        if requested == REQUESTED {
            work.failure.get_or_insert_with(unseen);
            return Ok(());
        }
        requested += 1;
        let backup = draft(schedule, &vm, &name, mode(schedule, &known, disk_uid(&vm)));
        match api.create(&PostParams::default(), &backup).await {
            Ok(_) => left -= 1,
            // The store lags behind.
            Err(error) if is_conflict(&error) => {}
            Err(error) if is_ending(&error) => return Ok(()),
            Err(source) => {
                let text = format!("failed to create backup {name}");
                let error = anyhow::Error::new(source).context(text);
                work.failure.get_or_insert(error);
            }
        }
    }
    if work.failure.is_none() {
        // Once for each time: the next pass has another one.
        for text in skipped {
            ctx.events.warning(schedule, "BackupSkipped", &text);
        }
    }
    Ok(())
}

/// Whether the API server refused something to the last pass.
fn has_failed(schedule: &VirtualMachineBackupSchedule) -> bool {
    let status = schedule.status.as_ref();
    let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
    ready.is_some_and(|ready| ready.reason == WRITE_FAILED)
}

/// Too many backups exist that the store does not have: the next pass comes after a back-off.
fn unseen() -> anyhow::Error {
    anyhow::anyhow!(
        "failed to create all backups: the API server has many of this time that the controller does not see; look for the \
         event Unreadable"
    )
}

/// The machines with a disk that the schedule is for, by name.
fn machines(ctx: &Context, schedule: &VirtualMachineBackupSchedule) -> Vec<Arc<VirtualMachine>> {
    let namespace = schedule.namespace().unwrap_or_default();
    let spec = &schedule.spec;
    let mut all: Vec<_> = match (&spec.vm_names, &spec.selector) {
        (Some(names), _) => {
            let found = names.iter();
            let found = found.filter_map(|name| ctx.stores.vm(&Key::new(&namespace, name)));
            found.collect()
        }
        (None, Some(selector)) => {
            let found = ctx.stores.vms.state().into_iter();
            let found = found.filter(|vm| vm.namespace().as_ref() == Some(&namespace));
            let has_all = |vm: &Arc<VirtualMachine>| {
                let mut wanted = selector.match_labels.iter();
                wanted.all(|(key, value)| vm.labels().get(key) == Some(value))
            };
            found.filter(has_all).collect()
        }
        (None, None) => Vec::new(),
    };
    all.retain(|vm| {
        let status = vm.status.as_ref();
        let is_made = status.is_some_and(|status| is_true(&status.conditions, CREATED));
        is_made && vm.metadata.deletion_timestamp.is_none()
    });
    all.sort_by_key(|vm| vm.name_any());
    all
}

/// The backups of a machine that the schedule has created, the oldest first.
fn of_machine(
    ctx: &Context,
    schedule: &VirtualMachineBackupSchedule,
    vm: &VirtualMachine,
) -> Vec<Arc<VirtualMachineBackup>> {
    let label = schedule.name_any();
    let mut all = ctx.stores.backups_of(&Key::from_object(vm));
    all.retain(|backup| backup.labels().get(BACKUP_SCHEDULE_LABEL) == Some(&label));
    all.sort_by_cached_key(|one| (one.creation_timestamp().map(|at| at.0), one.name_any()));
    all
}

/// Whether the next backup of the disk after these is to be of the whole disk.
fn mode(
    schedule: &VirtualMachineBackupSchedule,
    known: &[Arc<VirtualMachineBackup>],
    disk_uid: &str,
) -> BackupMode {
    let statuses = known.iter().rev();
    let statuses = statuses.filter_map(|backup| backup.status.as_ref());
    let statuses = statuses.filter(|status| status.disk_uid.as_deref() == Some(disk_uid));
    let mut kinds = statuses.filter_map(|status| status.type_);
    let increments = kinds.position(|kind| kind == BackupType::Full);
    let most = usize::try_from(schedule.spec.full_every).unwrap_or(usize::MAX);
    // Where there is none, the node makes a full one.
    match increments {
        Some(increments) if increments + 1 >= most => BackupMode::Full,
        Some(_) | None => BackupMode::Incremental,
    }
}

/// Name of the backup of a machine for a time of the schedule.
fn name(schedule: &VirtualMachineBackupSchedule, vm: &str, due: i64) -> String {
    let uid = schedule.uid().unwrap_or_default();
    let digest = Sha256::digest(uid.as_bytes());
    let hash: String = digest.iter().take(4).map(|b| format!("{b:02x}")).collect();
    let time = Timestamp::from_second(due).unwrap_or_default();
    format!("{vm}-{}-{hash}", time.strftime("%Y%m%d-%H%M"))
}

fn draft(
    schedule: &VirtualMachineBackupSchedule,
    vm: &VirtualMachine,
    name: &str,
    mode: BackupMode,
) -> VirtualMachineBackup {
    let spec = &schedule.spec;
    let mut backup = VirtualMachineBackup::new(
        name,
        VirtualMachineBackupSpec {
            vm_name: vm.name_any(),
            target: spec.target.clone(),
            target_claim_name: spec.target_claim_name.clone(),
            mode,
            quiesce: spec.quiesce.clone(),
            verify: spec.verify,
            ..VirtualMachineBackupSpec::default()
        },
    );
    backup.metadata.namespace = schedule.namespace();
    let label = (BACKUP_SCHEDULE_LABEL.to_owned(), schedule.name_any());
    backup.metadata.labels = Some([label].into());
    let of = (BACKUP_VM_UID.to_owned(), vm.uid().unwrap_or_default());
    backup.metadata.annotations = Some([of].into());
    backup
}
