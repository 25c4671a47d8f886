//! Takes over what a node reports of a backup that it has made.
//!
//! Invariant: the result is written in one write, so that no reader sees half of it.
//! Failure: none of its own.

use crds::conditions::{BACKUP_COMPLETED, BACKUP_READY, Status};
use crds::{
    BackupMode, BackupStorage, BackupType, ParentBackup, PowerState, TakenBackup, VirtualMachine,
    VirtualMachineTask,
};
use kube::ResourceExt;

use super::pass::Pass;
use crate::flow::Outcome;
use crate::reconcile::vm::quantity;

/// Longest list of claims in a message, in bytes.
const LONGEST: usize = 256;

pub(super) async fn record(pass: &mut Pass<'_>, task: &VirtualMachineTask) -> Outcome<()> {
    let status = task.status.as_ref();
    let taken = status.and_then(|status| status.backup.clone());
    take(pass, taken.unwrap_or_default());
    let left_out = (pass.ctx.stores.vm(&pass.machine())).map_or_else(String::new, |vm| claims(&vm));
    let text = match left_out.as_str() {
        "" => String::new(),
        claims => {
            format!("the backup has the root disk alone, and no data of these claims: {claims}")
        }
    };
    pass.condition(BACKUP_COMPLETED, Status::True, "", &text);
    pass.condition(BACKUP_READY, Status::True, "", "");
    pass.write().await?;
    let text = format!("node {} has made the backup", task.spec.node_name);
    pass.ctx
        .events
        .normal(&pass.backup, "BackupCompleted", &text);
    Ok(())
}

fn take(pass: &mut Pass<'_>, taken: TakenBackup) {
    let known = pass.ctx.stores.backups_of(&pass.machine());
    let is_incremental = pass.backup.spec.mode == BackupMode::Incremental;
    let draft = &mut pass.draft;
    draft.type_ = Some(if taken.full {
        BackupType::Full
    } else {
        BackupType::Incremental
    });
    draft.full_reason = if taken.full && is_incremental {
        taken.full_reason
    } else {
        String::new()
    };
    draft.parent = taken.parent_uid.map(|uid| {
        let mut known = known.iter();
        let parent = known.find(|backup| backup.metadata.uid.as_ref() == Some(&uid));
        ParentBackup {
            name: parent.map(|parent| parent.name_any()),
            uid,
        }
    });
    draft.creation_time = taken.created_time;
    draft.quiesced = taken.quiesced;
    draft.power_state = Some(if taken.running {
        PowerState::PoweredOn
    } else {
        PowerState::PoweredOff
    });
    draft.storage = Some(BackupStorage {
        requested: Some(quantity(taken.virtual_bytes.into())),
        stored: Some(quantity(taken.stored_bytes.into())),
        read: Some(quantity(taken.read_bytes.into())),
    });
    draft.manifest_sha256 = taken.manifest_sha256;
    draft.progress_percent = 100;
    draft.failed_attempts = 0;
}

/// The claims of a machine, which the backup does not contain.
fn claims(vm: &VirtualMachine) -> String {
    let volumes = vm.spec.volumes.iter();
    let names = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let names: Vec<_> = names.map(|claim| claim.claim_name.as_str()).collect();
    crds::text::printable(&names.join(", "), LONGEST)
}
