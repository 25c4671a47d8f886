//! Which nodes reach a backup target.
//!
//! Invariant: what counts is the last report of the agents: a node with an agent that renews no lease, or does not reach its
//! daemon, reaches no target.
//! Failure: in words, with what to do.

use crds::names::{BACKUP_CLAIMS, BACKUP_TARGET, DISK_BACKUPS};
use crds::{BackupPlace, TaskKind, VirtualMachineBackup};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::context::{Context, Key};

/// Whether a node can work on a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It can.
    Able,
    /// Not at present, and why.
    Unable(String),
    /// It has no target of that name, in words.
    NoTarget(String),
}

/// Whether that node runs tasks of that kind on what is there. Whether it can mount a claim, its pod shows.
pub(crate) fn reach(ctx: &Context, node: &str, kind: TaskKind, place: BackupPlace<'_>) -> Reach {
    let agents = &ctx.stores.agents;
    let runs = agents.runs(node, &format!("{kind:?}"));
    let unable = |why: String| Reach::Unable(why);
    match runs {
        None => unable(format!(
            "vmlet-agent on node {node} does not reach its daemon, or does not renew its lease: check its pod there"
        )),
        Some(is_known) if !is_known || !agents.has(node, DISK_BACKUPS) => unable(format!(
            "the programs of node {node} cannot run tasks of kind {kind:?}: upgrade vmlet and vmlet-agent there"
        )),
        Some(_) => match place {
            BackupPlace::Target(target)
                if !agents.has(node, &format!("{BACKUP_TARGET}{target}")) =>
            {
                Reach::NoTarget(format!(
                    "node {node} has no backup target {target}: an administrator adds it to backup.targets of the node, or make \
                     a backup to another target"
                ))
            }
            BackupPlace::Claim(_) if !agents.has(node, BACKUP_CLAIMS) => unable(format!(
                "the programs of node {node} cannot keep backups in claims: upgrade vmlet and vmlet-agent there"
            )),
            BackupPlace::Target(_) | BackupPlace::Claim(_) => Reach::Able,
        },
    }
}

/// A node that works on what the target has of a backup: the one that made it. Another one only if that no longer exists,
/// or has the target no more: a target of another node may be another place by mistake, and have nothing of the backup.
/// A deletion begins at the one that made it all the same, which lets go of the layer that it keeps.
pub(super) fn any(
    ctx: &Context,
    backup: &VirtualMachineBackup,
    kind: TaskKind,
) -> Result<String, String> {
    let place = backup.spec.place();
    let other = other(ctx, kind, place);
    let own = backup.status.as_ref().and_then(|s| s.node_name.clone());
    if let Some(node) = own.filter(|node| exists(ctx, node)) {
        match reach(ctx, &node, kind, place) {
            Reach::Able => return Ok(node),
            Reach::Unable(why) => {
                return Err(format!(
                    "{why}. It made the backup; another node takes its place when its Node object is deleted"
                ));
            }
            Reach::NoTarget(_) if kind == TaskKind::DeleteBackup && other.is_some() => {
                return Ok(node);
            }
            Reach::NoTarget(_) => {}
        }
    }
    other.ok_or_else(|| match place {
        BackupPlace::Target(target) => format!(
            "no node with a vmlet-agent that renews its lease has the backup target {target}: bring one back, or add the target \
             to backup.targets of a node that reaches it"
        ),
        BackupPlace::Claim(_) => {
            "no node has a vmlet-agent that renews its lease and programs that keep backups in claims: bring one back, or \
             upgrade one"
                .to_owned()
        }
    })
}

/// Another node, in the place of one that has the target no more.
pub(super) fn successor(
    ctx: &Context,
    node: &str,
    kind: TaskKind,
    place: BackupPlace<'_>,
) -> Option<String> {
    match reach(ctx, node, kind, place) {
        Reach::NoTarget(_) => other(ctx, kind, place),
        Reach::Able | Reach::Unable(_) => None,
    }
}

fn other(ctx: &Context, kind: TaskKind, place: BackupPlace<'_>) -> Option<String> {
    let able = ctx.stores.agents.able(&format!("{kind:?}"));
    let is_able = |node: &str| reach(ctx, node, kind, place) == Reach::Able;
    let mut able = able.into_iter();
    able.find(|node| exists(ctx, node) && is_able(node))
}

/// Whether the cluster has the node.
pub(super) fn exists(ctx: &Context, node: &str) -> bool {
    let key = Key::new("", node);
    ctx.stores.nodes.get(&key.reference::<Node>()).is_some()
}

/// Whether the namespace of a backup is being deleted.
pub(super) fn is_ending(ctx: &Context, backup: &VirtualMachineBackup) -> bool {
    let namespace = backup.namespace().unwrap_or_default();
    let key = Key::new("", namespace);
    let found = ctx.stores.namespaces.get(&key.reference());
    found.is_some_and(|found| found.metadata.deletion_timestamp.is_some())
}
