//! Whether a node reaches the place of a backup, and the pod that it needs for that where the place is a claim.
//!
//! Invariant: the pod is there before a task is, and while one has not ended. It goes with the pass that needs it no more: a
//! claim that one pod at a time can have is free for the next backup.
//! Failure: in words; the pass is repeated when the pod or the claim changes, and after a while.

use std::time::Duration;

use crds::names::BACKUP_MOUNTED_UNTIL;
use crds::{BackupPlace, TaskKind, VirtualMachineBackup};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};

use super::claim::{self, Claim, Desired, Mount, Usable};
use super::node;
use super::pass::Pass;
use crate::flow::Outcome;

/// How soon a pod is looked at again: room in a quota, say, shows by no event.
const AGAIN: Duration = Duration::from_secs(60);

/// Longest time for which a claim is mounted for a user.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// What a pass has found of the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// The node reaches it.
    Ready,
    /// It does not, and why.
    Waits(String),
    /// The claim is gone that has the backup, in words.
    Gone(String),
}

/// The claim that has the backup, or is to have it; none: it is a target of nodes.
pub(super) fn claim(pass: &Pass<'_>) -> Option<Claim> {
    let BackupPlace::Claim(name) = pass.backup.spec.place() else {
        return None;
    };
    let recorded = pass.draft.target_claim_uid.as_deref();
    Some(claim::look(pass.ctx, &pass.key.namespace, name, recorded))
}

/// The place as nodes name it.
pub(super) fn target(pass: &Pass<'_>) -> String {
    let recorded = pass.draft.target_claim_uid.as_deref();
    name(&pass.backup, recorded)
}

/// The place of a backup as nodes name it; `claim`: UID of its claim.
pub(crate) fn name(backup: &VirtualMachineBackup, claim: Option<&str>) -> String {
    match backup.spec.place() {
        BackupPlace::Target(name) => name.to_owned(),
        BackupPlace::Claim(_) => claim::target(claim.unwrap_or_default()),
    }
}

/// Lets a node reach the place.
pub(super) async fn reach(pass: &mut Pass<'_>, node: &str) -> Outcome<Place> {
    let usable = match claim(pass) {
        None => return Ok(Place::Ready),
        Some(Claim::Usable(usable)) => usable,
        Some(Claim::Waits(why) | Claim::Unfit(why)) => return Ok(Place::Waits(why)),
        Some(Claim::Gone(why)) => return Ok(Place::Gone(why)),
    };
    mount(pass, &usable, node).await
}

async fn mount(pass: &mut Pass<'_>, usable: &Usable, node: &str) -> Outcome<Place> {
    pass.needs_pod = true;
    let desired = Desired {
        namespace: &pass.key.namespace,
        claim: usable,
        node,
        owner: owner(pass),
    };
    match claim::mount(pass.ctx, &desired).await? {
        Mount::Ready => Ok(Place::Ready),
        Mount::Waits(why) => {
            pass.requeue_within(AGAIN);
            Ok(Place::Waits(why))
        }
    }
}

/// Has the claim mounted while a user fetches the backup.
pub(super) async fn serve(pass: &mut Pass<'_>) -> Outcome<()> {
    let Some(left) = time_left(pass) else {
        return Ok(());
    };
    if let Some(Claim::Usable(usable)) = claim(pass)
        && !has_open_task(pass)
        && let Ok(node) = node::any(pass.ctx, &pass.backup, TaskKind::VerifyBackup)
    {
        mount(pass, &usable, &node).await?;
    }
    pass.requeue_within(left);
    Ok(())
}

/// How long the claim is to stay mounted.
fn time_left(pass: &Pass<'_>) -> Option<Duration> {
    let until = pass.backup.annotations().get(BACKUP_MOUNTED_UNTIL)?;
    let until: Timestamp = until.parse().ok()?;
    let left = u64::try_from(until.as_second() - pass.seconds()).ok()?;
    (1..=LONGEST.as_secs())
        .contains(&left)
        .then_some(Duration::from_secs(left))
}

fn has_open_task(pass: &Pass<'_>) -> bool {
    let tasks = pass.ctx.stores.tasks_of_backup(pass.key);
    tasks.iter().any(|task| !task.is_final())
}

/// Deletes the pod of the backup, unless a task or this pass needs it.
pub(super) async fn leave(pass: &Pass<'_>) -> Outcome<()> {
    if matches!(pass.backup.spec.place(), BackupPlace::Target(_)) || pass.needs_pod {
        return Ok(());
    }
    if has_open_task(pass) {
        return Ok(());
    }
    claim::unmount(pass.ctx, &pass.key.namespace, &owner(pass)).await
}

fn owner(pass: &Pass<'_>) -> OwnerReference {
    let owner = pass.backup.controller_owner_ref(&());
    owner.unwrap_or_else(|| OwnerReference {
        name: pass.backup.name_any(),
        ..OwnerReference::default()
    })
}
