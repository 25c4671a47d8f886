//! The snapshot of a machine that runs, which a clone of it is copied from.
//!
//! ```text
//! source runs ─► snapshot clone-UID, owned by the clone ─► taken as any other ─► CloneDisk ─► Created ─► deleted
//!                  ▲                └─ failed, or of an earlier disk ─► deleted ─┐
//!                  └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: there is one snapshot for a clone, which its name ensures. The clone has its finalizer before that, and is
//! let go after the snapshot was deleted, so that none stays behind, also when the garbage collector has taken the clone
//! off its owners (a deletion in the foreground): an annotation names the clone, too. Passes over the source take and remove it,
//! as all snapshots.
//! Failure: what the API server refuses is the failure of the pass; what keeps the snapshot from being taken is in
//! `VirtualMachineSourceReady`.

use std::time::Duration;

use crds::conditions::SNAPSHOT_CREATED;
use crds::names::CLONE_UID;
use crds::{VirtualMachineSnapshot, VirtualMachineSnapshotSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::PostParams;

use crate::flow::{Flow, Outcome};
use crate::reconcile::answers::is_conflict;
use crate::reconcile::node_tasks;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::snapshots;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{Missing, OwnSnapshot};
use crate::reconcile::vm::write::snapshot as write;

/// Seconds from the time when a snapshot that failed was requested to the one that replaces it.
const RETRY: i64 = 300;

/// Takes the snapshot that is missing, or removes one that cannot be copied.
pub(super) async fn prepare(pass: &mut Pass<'_>, missing: &Missing) -> Outcome<()> {
    let Some(own) = OwnSnapshot::find(pass) else {
        return Ok(());
    };
    match own.found {
        None if missing.needs_snapshot.is_some() => take(pass, own.name).await,
        Some(found) if OwnSnapshot::is_own(pass, &found) && is_futile(pass, &found) => {
            write::delete(pass.ctx, &found).await
        }
        None | Some(_) => Ok(()),
    }
}

/// After a pass in which the disk was made: the snapshot goes.
pub(crate) async fn leave(pass: &Pass<'_>) -> Outcome {
    if pass.is_created()
        && let Some(found) = OwnSnapshot::find(pass).and_then(|own| own.found)
    {
        remove(pass, &found).await?;
    }
    Ok(Flow::Continue)
}

/// The clone is being deleted. The store may not show yet what an earlier pass has made.
pub(crate) async fn abandon(pass: &Pass<'_>) -> Outcome<()> {
    if pass.is_created() {
        return leave(pass).await.map(drop);
    }
    let Some(own) = OwnSnapshot::find(pass) else {
        return Ok(());
    };
    let api = pass.api::<VirtualMachineSnapshot>();
    let found = api.get_opt(&own.name).await.map_err(|source| {
        let what = format!("snapshot {}", own.name);
        Error::Read { what, source }
    })?;
    match found {
        Some(found) => remove(pass, &found).await,
        None => Ok(()),
    }
}

async fn remove(pass: &Pass<'_>, found: &VirtualMachineSnapshot) -> Outcome<()> {
    let is_there = found.metadata.deletion_timestamp.is_none();
    if is_there && OwnSnapshot::is_taken_for(pass, found) {
        write::delete(pass.ctx, found).await?;
    }
    Ok(())
}

async fn take(pass: &mut Pass<'_>, name: String) -> Outcome<()> {
    let source = pass.vm.spec.source.as_ref();
    let Some(source) = source.and_then(|source| source.virtual_machine.as_ref()) else {
        return Ok(());
    };
    let spec = VirtualMachineSnapshotSpec {
        vm_name: source.name.clone(),
        memory: false,
        quiesce: None,
        description: Some(format!(
            "Taken for the clone {}, and deleted when that has its disk",
            pass.key.name
        )),
    };
    let mut new = VirtualMachineSnapshot::new(&name, spec);
    new.metadata.namespace = Some(pass.key.namespace.clone());
    // One that a backup tool has restored would be of another disk.
    new.metadata.labels = Some(node_tasks::labels());
    new.metadata.annotations = Some([(CLONE_UID.to_owned(), pass.uid())].into());
    // Its machine becomes another owner of it, and neither of them is its controller.
    new.metadata.owner_references = Some(vec![OwnerReference {
        controller: None,
        block_owner_deletion: None,
        ..pass.owner()
    }]);
    let api = pass.api::<VirtualMachineSnapshot>();
    match api.create(&PostParams::default(), &new).await {
        Ok(_) => {
            pass.count_change();
            Ok(())
        }
        // An earlier pass has made it, and its event is on its way.
        Err(error) if is_conflict(&error) => Ok(()),
        Err(source) => Err(Error::WriteSnapshot { name, source }.into()),
    }
}

/// Whether it is of an earlier disk, or failed some time ago.
fn is_futile(pass: &mut Pass<'_>, snapshot: &VirtualMachineSnapshot) -> bool {
    if snapshot.metadata.deletion_timestamp.is_some() || snapshots::is_open(snapshot) {
        return false;
    }
    if snapshot.is_created() {
        // A snapshot of a disk that exists can be copied, unless its node lacks something, which may pass.
        return OwnSnapshot::is_of_earlier_disk(pass, snapshot);
    }
    let failed = snapshot.condition(SNAPSHOT_CREATED);
    let since = failed.map_or(0, |failed| failed.last_transition_time.0.as_second());
    let left = u64::try_from(since + RETRY - pass.seconds()).unwrap_or_default();
    if left > 0 {
        pass.requeue_within(Duration::from_secs(left));
    }
    left == 0
}
