//! The tree of a machine's snapshots, in the status of the machine and of the snapshots.
//!
//! Invariant: a snapshot is a child of its parent, or a root if it has none; each list is in the order of
//! the names.
//! Failure: none; a parent that no object represents makes a root.

use crds::conditions::{SNAPSHOT_READY, Status};
use crds::{SnapshotReference, VirtualMachineSnapshot};
use kube::ResourceExt;

use crate::flow::Outcome;
use crate::reconcile::vm::observe::snapshots;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::write::snapshot as write;

/// Reason of [`SNAPSHOT_READY`], False: a later machine of the name has another disk.
const DISK_GONE: &str = "VirtualMachineSnapshotDiskGone";

pub(super) async fn run(pass: &mut Pass<'_>, all: &mut [VirtualMachineSnapshot]) -> Outcome<()> {
    let disk = pass.disk_uid();
    let is_in_it =
        |one: &VirtualMachineSnapshot| one.is_created() && snapshots::is_of_disk(one, &disk);
    let tree: Vec<_> = all.iter().filter(|one| is_in_it(one)).collect();
    let mut links: Vec<_> = tree
        .iter()
        .map(|one| {
            let parent = one
                .status
                .as_ref()
                .and_then(|status| status.parent.as_ref());
            let parent = parent.and_then(|parent| parent.uid.clone());
            let is_known = |uid: &String| tree.iter().any(|one| one.uid().as_ref() == Some(uid));
            (parent.filter(is_known), one.reference())
        })
        .collect();
    links.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    let below = |uid: Option<&String>| -> Vec<SnapshotReference> {
        let children = links.iter().filter(|(parent, _)| parent.as_ref() == uid);
        children.map(|(_, child)| child.clone()).collect()
    };
    let current = pass
        .seen()
        .and_then(|status| status.current_snapshot.clone());
    let current = current.filter(|current| {
        let mut known = all.iter().filter(|one| snapshots::is_of_disk(one, &disk));
        known.any(|one| one.uid() == current.uid)
    });
    let roots = below(None);
    if pass.vm.status.is_some() {
        let status = pass.status();
        status.root_snapshots = roots;
        status.current_snapshot = current;
    }
    for one in all.iter_mut().filter(|one| one.is_created()) {
        let mut draft = one.status.clone().unwrap_or_default();
        if snapshots::is_of_disk(one, &disk) {
            draft.children = below(one.uid().as_ref());
        } else {
            let why = "the machine has another disk: delete this snapshot";
            let state = (Status::False, DISK_GONE, why);
            write::condition(pass.ctx, one, &mut draft, SNAPSHOT_READY, state);
        }
        write::status(pass.ctx, one, draft).await?;
    }
    Ok(())
}
