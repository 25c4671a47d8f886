//! The snapshots that name a machine.
//!
//! Invariant: a snapshot that was requested from a node has the UID of the disk on record: one of an
//! earlier machine of the same name is none of this machine's.
//! Failure: none.

use std::collections::BTreeSet;
use std::sync::Arc;

use crds::conditions::{DISK_PROMOTION_SYNCED, SNAPSHOT_CREATED, find};
use crds::vm::PromoteDisksMode;
use crds::{PowerState, TaskKind, VirtualMachineSnapshot, VirtualMachineTask, names};
use kube::ResourceExt;
use lifecycle::snapshot::{Ability, Facts};

use super::pods;
use crate::context::{Context, Key};
use crate::reconcile::vm::act::{promotion, tasks};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{Disk, claimed_disks};

/// Reason of [`SNAPSHOT_CREATED`], False: the snapshot is not taken, and never will be.
pub(crate) const CREATION_FAILED: &str = "VirtualMachineSnapshotCreationFailed";

/// All that name the machine, the oldest first.
pub(crate) fn known(ctx: &Context, vm: &Key) -> Vec<VirtualMachineSnapshot> {
    let found = ctx.stores.snapshots_of(vm).into_iter();
    let mut all: Vec<_> = found.map(Arc::unwrap_or_clone).collect();
    all.sort_by_cached_key(|one| (one.creation_timestamp().map(|at| at.0), one.name_any()));
    all
}

/// Whether it is, or is to be, one of the disk that the machine has.
pub(crate) fn is_of_disk(snapshot: &VirtualMachineSnapshot, disk_uid: &str) -> bool {
    recorded_disk(snapshot) == Some(disk_uid)
}

/// UID of the disk that it was requested for.
pub(crate) fn recorded_disk(snapshot: &VirtualMachineSnapshot) -> Option<&str> {
    snapshot.status.as_ref()?.disk_uid.as_deref()
}

/// Whether a node may have it.
pub(crate) fn may_be_on_node(snapshot: &VirtualMachineSnapshot) -> bool {
    let mut all = snapshot.finalizers().iter();
    all.any(|finalizer| finalizer == names::SNAPSHOT_FINALIZER)
}

/// Whether a backup tool has restored it: the node has it under the UID of an earlier object, if at all.
pub(crate) fn is_restored(snapshot: &VirtualMachineSnapshot) -> bool {
    let requested = snapshot.annotations().get(names::SNAPSHOT_UID);
    requested.is_some() && requested != snapshot.metadata.uid.as_ref()
}

/// Whether it is still to be taken.
pub(crate) fn is_open(snapshot: &VirtualMachineSnapshot) -> bool {
    let created = snapshot.condition(SNAPSHOT_CREATED);
    let is_over = created.is_some_and(|c| c.status == "True" || c.reason == CREATION_FAILED);
    !is_over && snapshot.metadata.deletion_timestamp.is_none()
}

/// Whether the disk of the machine has a snapshot, or may have one.
pub(crate) fn has_any(pass: &Pass<'_>) -> bool {
    let disk = pass.disk_uid();
    let all = pass.ctx.stores.snapshots_of(pass.key);
    all.iter()
        .any(|one| may_be_on_node(one) && is_of_disk(one, &disk))
}

/// The tasks of that kind for a snapshot.
pub(crate) fn tasks(
    pass: &Pass<'_>,
    kind: TaskKind,
    snapshot: &VirtualMachineSnapshot,
) -> Vec<Arc<VirtualMachineTask>> {
    let uid = snapshot.uid();
    let mut all = tasks::all(pass);
    all.retain(|task| {
        let request = task.spec.snapshot.as_ref();
        let named = request.map(|request| &request.uid);
        task.spec.kind == kind && uid.is_some() && named == uid.as_ref()
    });
    all
}

/// The task of that kind for a snapshot.
pub(crate) fn task(
    pass: &Pass<'_>,
    kind: TaskKind,
    snapshot: &VirtualMachineSnapshot,
) -> Option<Arc<VirtualMachineTask>> {
    tasks(pass, kind, snapshot).into_iter().next()
}

/// The node of the disk.
pub(crate) fn node(pass: &Pass<'_>) -> Option<String> {
    let pod = pass.view.pod.as_deref();
    let node = pod.and_then(pods::node).map(str::to_owned);
    node.or_else(|| pass.node_name())
}

/// Whether the programs of that node run that kind of task.
pub(crate) fn ability(pass: &Pass<'_>, node: &str, kind: TaskKind) -> Ability {
    let agents = &pass.ctx.stores.agents;
    match agents.runs(node, &format!("{kind:?}")) {
        _ if !agents.are_listed() => Ability::Unknown,
        Some(true) => Ability::Able,
        Some(false) => Ability::Unable,
        None => Ability::Unknown,
    }
}

/// Why the programs of that node do not run that kind of task at present, if so.
pub(crate) fn inability(pass: &Pass<'_>, node: &str, kind: TaskKind) -> Option<String> {
    match ability(pass, node, kind) {
        Ability::Able => None,
        Ability::Unable => Some(format!(
            "the programs of node {node} cannot run tasks of kind {kind:?}: upgrade vmlet and \
             vmlet-agent there"
        )),
        Ability::Unknown => Some(format!(
            "vmlet-agent on node {node} does not reach its daemon, or does not renew its lease: check its \
             pod there"
        )),
    }
}

/// The claims that a snapshot has parts of, in the order of the volumes: those that the machine may write.
pub(crate) fn claimed(pass: &Pass<'_>) -> Vec<Disk> {
    let mut all = claimed_disks(pass);
    let mut names = BTreeSet::new();
    all.retain(|disk| !disk.is_read_only && names.insert(disk.claim.clone()));
    all
}

/// Those claims, as texts.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    all: String,
    unbound: String,
}

impl Claims {
    /// Those of the machine.
    pub(crate) fn new(pass: &Pass<'_>) -> Self {
        let all: Vec<_> = claimed(pass).into_iter().map(|disk| disk.claim).collect();
        let is_bound = |name: &String| {
            let key = Key::new(&pass.key.namespace, name);
            let found = pass.ctx.stores.claims.get(&key.reference());
            let status = found.as_ref().and_then(|claim| claim.status.as_ref());
            status.is_some_and(|status| status.phase.as_deref() == Some("Bound"))
        };
        let unbound: Vec<_> = all.iter().filter(|name| !is_bound(name)).cloned().collect();
        Self {
            all: all.join(", "),
            unbound: unbound.join(", "),
        }
    }
}

/// What decides about the next snapshot; `node` is that of the disk, empty without a disk.
pub(crate) fn facts<'a>(
    pass: &Pass<'_>,
    node: &'a str,
    claims: &'a Claims,
    count: usize,
) -> Facts<'a> {
    let is_claim = pass.root_claim().is_some();
    let seen = pass.seen();
    let reverts = pass.base.spec.current_snapshot_name.is_some()
        || seen.is_some_and(|status| status.snapshot_revert.is_some());
    Facts {
        has_disk: pass.is_created() && (is_claim || !node.is_empty()),
        is_claim,
        claims: &claims.all,
        unbound: &claims.unbound,
        power_state: seen.and_then(|status| status.power_state),
        is_promoting: is_promoting(pass),
        reverts,
        is_busy: tasks::live(pass).is_some(),
        count,
        node,
        ability: ability(pass, node, TaskKind::Snapshot),
        saves_memory: saves_memory(pass, node),
        freezes: ability(pass, node, TaskKind::Freeze),
    }
}

/// Whether the programs of that node take snapshots with memory, and revert to them.
pub(crate) fn saves_memory(pass: &Pass<'_>, node: &str) -> bool {
    pass.ctx.stores.agents.has(node, names::MEMORY_SNAPSHOTS)
}

/// The disk is being flattened, or is to be, while the machine is off. One that the node refused to flatten stays
/// linked, and a machine that runs ends it for a snapshot.
fn is_promoting(pass: &Pass<'_>) -> bool {
    let mut all = tasks::all(pass).into_iter();
    if pass.vm.spec.promote_disks_mode != Some(PromoteDisksMode::Offline) {
        return all.any(|task| {
            task.spec.kind == TaskKind::Promote && !task.spec.online && !task.is_final()
        });
    }
    let conditions = pass.seen().map(|status| status.conditions.as_slice());
    let synced = conditions.and_then(|all| find(all, DISK_PROMOTION_SYNCED));
    let is_due =
        synced.is_some_and(|synced| synced.status == "False" && promotion::is_due(&synced.reason));
    is_due || all.any(|task| task.spec.kind == TaskKind::Promote && !task.is_final())
}

/// The observed power state.
pub(crate) fn power_state(pass: &Pass<'_>) -> Option<PowerState> {
    pass.seen().and_then(|status| status.power_state)
}
