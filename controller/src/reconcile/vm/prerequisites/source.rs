//! The snapshot or machine that a machine is a clone of, or the backup that it is restored from ([`backup`]). Of a machine that
//! runs a snapshot is taken first ([`running`]).
//!
//! Invariant: all are of the namespace of the machine. What a node copies is named by the UIDs of disk and snapshot:
//! a later snapshot or machine of the same name is another source.
//! Failure: a source that does not exist or cannot be copied; one that is not ready yet is waited for.

mod backup;
mod running;

use std::sync::Arc;

use crds::conditions::{CREATED, is_true};
use crds::{BackupRequest, TaskKind, VirtualMachine, VirtualMachineSnapshot, names};
use kube::ResourceExt;

use super::{Missing, bytes};
use crate::context::Key;
use crate::reconcile::backup::claim::Usable;
use crate::reconcile::vm::observe::{snapshots, view};
use crate::reconcile::vm::pass::Pass;
use crate::stores::own_root_claim;

pub(crate) use self::running::OwnSnapshot;

/// Reason of the condition: the source is there, and is not ready yet.
const WAITS: &str = "NotReady";

/// A disk that can be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// The node that has it.
    pub(crate) node: String,
    /// UID under which the node keeps it.
    pub(crate) disk_uid: String,
    /// UID of the snapshot that is copied.
    pub(crate) snapshot_uid: Option<String>,
    /// The backup that the disk is made from, in place of another disk.
    pub(crate) backup: Option<BackupRequest>,
    /// The claim that has the backup.
    pub(crate) claim: Option<Usable>,
    /// The image that it was made from.
    pub(crate) image: Option<String>,
    /// The URL of that image.
    pub(crate) image_url: Option<String>,
    /// Virtual size of it, as far as that is recorded.
    pub(crate) virtual_bytes: Option<i128>,
    /// What it is, for people.
    pub(crate) words: String,
}

impl Missing {
    /// Whether a change of the source ends it, so that nothing has failed.
    pub(crate) fn waits_for_source(&self) -> bool {
        self.reason == WAITS
    }
}

/// The source, if it can be copied now.
pub(super) fn check(pass: &Pass<'_>) -> Result<Source, Missing> {
    let source = pass.vm.spec.source.clone().unwrap_or_default();
    match (&source.snapshot, &source.virtual_machine, &source.backup) {
        (Some(snapshot), _, _) => of_snapshot(pass, &snapshot.name),
        (None, Some(vm), _) => of_machine(pass, &vm.name),
        (None, None, Some(backup)) => backup::check(pass, &backup.name),
        (None, None, None) => Err(Missing::new("NotSet", "the source names nothing")),
    }
}

fn of_snapshot(pass: &Pass<'_>, name: &str) -> Result<Source, Missing> {
    let key = Key::new(&pass.key.namespace, name);
    let Some(snapshot) = pass.ctx.stores.snapshots.get(&key.reference()) else {
        let message = format!("snapshot {name} does not exist in this namespace");
        return Err(Missing::new("NotFound", message));
    };
    let owner = &snapshot.spec.vm_name;
    is_usable(name, &snapshot)?;
    let vm = machine(pass, owner).filter(|vm| snapshots::is_of_disk(&snapshot, disk_uid(vm)));
    let Some(vm) = vm else {
        let message = format!(
            "snapshot {name} is of a disk that machine {owner} does not have: the machine was deleted, or made again"
        );
        return Err(Missing::new("NotFound", message));
    };
    let storage = snapshot.status.as_ref().and_then(|s| s.storage.as_ref());
    Ok(Source {
        snapshot_uid: snapshot.uid(),
        virtual_bytes: storage.and_then(|s| s.requested.as_ref()).and_then(bytes),
        words: format!("snapshot {name} of machine {owner}"),
        ..disk_of(pass, owner, &vm)?
    })
}

/// Whether the node has the snapshot.
fn is_usable(name: &str, snapshot: &VirtualMachineSnapshot) -> Result<(), Missing> {
    let waits = |what: &str| Missing::new(WAITS, format!("snapshot {name} {what}"));
    if snapshot.metadata.deletion_timestamp.is_some() {
        let message = format!("snapshot {name} is being deleted");
        return Err(Missing::new("NotFound", message));
    }
    if snapshots::is_restored(snapshot) {
        let message = format!(
            "the object of snapshot {name} was restored from a backup or copied, and no disk has a snapshot of it"
        );
        return Err(Missing::new("NotSupported", message));
    }
    if snapshots::is_open(snapshot) {
        return Err(waits("is not ready yet"));
    }
    if !snapshot.is_created() {
        let message = format!("snapshot {name} failed: take another one");
        return Err(Missing::new("NotSupported", message));
    }
    Ok(())
}

fn of_machine(pass: &Pass<'_>, name: &str) -> Result<Source, Missing> {
    if *name == pass.key.name {
        let message = "the machine names itself as its source: name another machine";
        return Err(Missing::new("NotSupported", message));
    }
    let Some(vm) = machine(pass, name) else {
        let message = format!("machine {name} does not exist in this namespace");
        return Err(Missing::new("NotFound", message));
    };
    let found = disk_of(pass, name, &vm)?;
    let status = vm.status.clone().unwrap_or_default();
    if status.snapshot_revert.is_some() {
        let message = format!("machine {name} reverts to a snapshot");
        return Err(Missing::new(WAITS, message));
    }
    match running::check(pass, &vm)? {
        Some(snapshot) => of_snapshot(pass, &snapshot),
        None => Ok(found),
    }
}

fn machine(pass: &Pass<'_>, name: &str) -> Option<Arc<VirtualMachine>> {
    pass.ctx.stores.vm(&Key::new(&pass.key.namespace, name))
}

/// UID under which the node of a machine keeps its root disk.
pub(crate) fn disk_uid(vm: &VirtualMachine) -> &str {
    let adopted = vm.status.as_ref().and_then(|s| s.disk_uid.as_deref());
    let own = vm.metadata.uid.as_deref();
    adopted.or(own).unwrap_or_default()
}

/// The root disk of a machine, if its node can copy it.
fn disk_of(pass: &Pass<'_>, name: &str, vm: &VirtualMachine) -> Result<Source, Missing> {
    let claims = vm.spec.volumes.iter();
    let mut claims = claims.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    if own_root_claim(vm).is_some() || claims.any(|claim| claim.root) {
        let message = format!(
            "the root disk of machine {name} is a claim, which nodes do not copy: make an image of the claim \
             (source.pvc), or clone the claim by the means of its storage"
        );
        return Err(Missing::new("NotSupported", message));
    }
    if vm.metadata.deletion_timestamp.is_some() {
        let message = format!("machine {name} is being deleted");
        return Err(Missing::new("NotFound", message));
    }
    let status = vm.status.clone().unwrap_or_default();
    let is_made = is_true(&status.conditions, CREATED);
    let Some(node) = status.node_name.filter(|_| is_made) else {
        let message = format!("machine {name} has no root disk yet");
        return Err(Missing::new(WAITS, message));
    };
    if view::node(pass, &node).is_none() {
        let message = format!("node {node}, which has the disk of machine {name}, does not exist");
        return Err(Missing::new("NodeLost", message));
    }
    if let Some(why) = snapshots::inability(pass, &node, TaskKind::CloneDisk) {
        return Err(Missing::new(WAITS, why));
    }
    // An agent of an earlier version names kinds of its daemon that it cannot read itself.
    if !pass.ctx.stores.agents.has(&node, names::DISK_CLONES) {
        let message = format!(
            "vmlet-agent on node {node} cannot run tasks of kind CloneDisk: upgrade it there"
        );
        return Err(Missing::new(WAITS, message));
    }
    Ok(Source {
        node,
        disk_uid: disk_uid(vm).to_owned(),
        snapshot_uid: None,
        backup: None,
        claim: None,
        image: status.image,
        image_url: status.image_url,
        virtual_bytes: (status.storage.as_ref())
            .and_then(|storage| storage.requested.as_ref())
            .and_then(bytes),
        words: format!("machine {name}"),
    })
}
