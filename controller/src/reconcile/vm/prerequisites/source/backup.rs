//! The backup that a machine is restored from, and the node that does it.
//!
//! Invariant: what a node restores is named by the UIDs of backup and disk, and by the digest of the backup's manifest: a
//! later backup of the same name is another source. The node is the one on record, once there is one.
//! Failure: a backup that does not exist, failed or is damaged; one that is not complete, or whose target no node reaches,
//! is waited for.

use crds::conditions::BACKUP_READY;
use crds::{BackupPlace, BackupRequest, TaskKind, VirtualMachineBackup, names};
use kube::ResourceExt;

use super::{Missing, Source, WAITS, bytes};
use crate::context::Key;
use crate::reconcile::backup::claim::{self, Claim, Usable};
use crate::reconcile::backup::{Reach, place_name, reach};
use crate::reconcile::vm::observe::view;
use crate::reconcile::vm::pass::Pass;

/// The backup as a source, if a node can restore it now.
pub(super) fn check(pass: &Pass<'_>, name: &str) -> Result<Source, Missing> {
    let key = Key::new(&pass.key.namespace, name);
    let Some(backup) = pass.ctx.stores.backups.get(&key.reference()) else {
        let message = format!("backup {name} does not exist in this namespace");
        return Err(Missing::new("NotFound", message));
    };
    is_usable(name, &backup)?;
    let status = backup.status.clone().unwrap_or_default();
    let place = backup.spec.place();
    let node =
        node(pass, place, status.node_name.as_deref()).map_err(|why| Missing::new(WAITS, why))?;
    let claim_uid = status.target_claim_uid.as_deref();
    let claim = match place {
        BackupPlace::Target(_) => None,
        BackupPlace::Claim(claim) => Some(claim_of(pass, claim, claim_uid)?),
    };
    let size = status.storage.as_ref().and_then(|s| s.requested.as_ref());
    let disk_uid = status.disk_uid.unwrap_or_default();
    Ok(Source {
        node,
        disk_uid: disk_uid.clone(),
        snapshot_uid: None,
        backup: Some(BackupRequest {
            uid: backup.uid().unwrap_or_default(),
            target: place_name(&backup, claim_uid),
            disk_uid: Some(disk_uid),
            manifest_sha256: status.manifest_sha256,
            full: false,
            quiesce_seconds: None,
        }),
        claim,
        image: status.image,
        image_url: status.image_url,
        virtual_bytes: size.and_then(bytes),
        words: format!("backup {name} of machine {}", backup.spec.vm_name),
    })
}

/// Whether the target has the backup.
fn is_usable(name: &str, backup: &VirtualMachineBackup) -> Result<(), Missing> {
    if backup.metadata.deletion_timestamp.is_some() {
        let message = format!("backup {name} is being deleted");
        return Err(Missing::new("NotFound", message));
    }
    let requested = backup.annotations().get(names::BACKUP_UID);
    if requested.is_some() && requested != backup.metadata.uid.as_ref() {
        let message = format!(
            "the object of backup {name} was restored from a backup or copied, and no target has data of it"
        );
        return Err(Missing::new("NotSupported", message));
    }
    if backup.is_open() {
        let message = format!("backup {name} is not complete yet");
        return Err(Missing::new(WAITS, message));
    }
    if !backup.is_completed() {
        let message = format!("backup {name} failed: restore another one");
        return Err(Missing::new("NotSupported", message));
    }
    let ready = backup.condition(BACKUP_READY);
    match ready.filter(|ready| ready.status != "True") {
        Some(ready) => {
            let message = format!("backup {name} cannot be restored: {}", ready.message);
            Err(Missing::new("NotSupported", message))
        }
        None => Ok(()),
    }
}

/// The node on record; else the one that made the backup, or another one that reaches the target. Machines that are
/// restored from one backup are spread.
fn node(pass: &Pass<'_>, place: BackupPlace<'_>, made_by: Option<&str>) -> Result<String, String> {
    let able = |node: &str| reach(pass.ctx, node, TaskKind::RestoreBackup, place);
    if let Some(begun) = pass.node_name() {
        return match able(&begun) {
            Reach::Able => Ok(begun),
            Reach::Unable(why) | Reach::NoTarget(why) => Err(why),
        };
    }
    let is_fit = |node: &str| {
        let found = view::node(pass, node);
        let spec = found.and_then(|node| node.spec.clone());
        let is_cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
        view::is_ready(pass, node) && !is_cordoned && able(node) == Reach::Able
    };
    if let Some(node) = made_by.filter(|node| is_fit(node)) {
        return Ok(node.to_owned());
    }
    let kind = format!("{:?}", TaskKind::RestoreBackup);
    let mut fit = pass.ctx.stores.agents.able(&kind);
    fit.retain(|node| is_fit(node));
    let sum: usize = pass.uid().bytes().map(usize::from).sum();
    let turn = sum.checked_rem(fit.len());
    turn.map(|turn| fit.swap_remove(turn)).ok_or_else(|| match place {
        BackupPlace::Target(target) => format!(
            "no node that takes machines, and has a vmlet-agent that renews its lease, has the backup target {target}: add it to \
             backup.targets of a node that reaches it"
        ),
        BackupPlace::Claim(_) => {
            "no node that takes machines has a vmlet-agent that renews its lease, and programs that keep backups in claims: \
             upgrade vmlet and vmlet-agent"
                .to_owned()
        }
    })
}

/// The claim that has the backup. The machine is not woken by a change of it.
fn claim_of(pass: &Pass<'_>, name: &str, recorded: Option<&str>) -> Result<Usable, Missing> {
    match claim::look(pass.ctx, &pass.key.namespace, name, recorded) {
        Claim::Usable(usable) => Ok(usable),
        Claim::Waits(why) => Err(Missing::new(WAITS, why).unwatched()),
        Claim::Unfit(why) | Claim::Gone(why) => Err(Missing::new("NotFound", why).unwatched()),
    }
}
