//! Pods, tasks and snapshots whose machine was deleted.
//!
//! Invariant: a pod is let go once nothing of it runs; one that runs is left alone. A task or a snapshot is
//! deleted only after the API server has confirmed that its owner does not exist.
//! Failure: the pass is repeated.

use crds::names::VM_UID_LABEL;
use crds::{VirtualMachine, VirtualMachineSnapshot, VirtualMachineTask};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::ResourceExt;

use crate::context::{Context, Key};
use crate::flow::{Flow, Outcome};
use crate::reconcile::node_tasks;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::{pods, snapshots};
use crate::reconcile::vm::write::{patch, snapshot};

/// Releases the pod of a machine that no longer exists.
pub(crate) async fn release(ctx: &Context, key: &Key) -> Outcome {
    let is_its = |pod: &Pod| {
        pod.namespace().as_deref() == Some(&key.namespace)
            && (pod.name_any() == key.name || owner_name(pod) == Some(&key.name))
    };
    let mut all = ctx.stores.pods.state();
    all.retain(|pod| is_its(pod) && pods::is_over(pod));
    all.sort_by_key(|pod| pod.name_any());
    for pod in all {
        patch::release_pod(&Api::namespaced(ctx.client.clone(), &key.namespace), &pod).await?;
    }
    Ok(Flow::Continue)
}

/// Deletes the tasks of earlier machines of that name. A node keeps a task recorded as long as the
/// object exists, and the cluster's garbage collector, which deletes it too, may need minutes after
/// the API server was restarted.
pub(crate) async fn delete_tasks(ctx: &Context, key: &Key) -> Outcome<()> {
    let known = ctx.stores.vm(key).and_then(|vm| vm.uid());
    let mut left = ctx.stores.tasks_named(key);
    left.retain(|task| is_of_another(task, known.as_deref()));
    if left.is_empty() {
        return Ok(());
    }
    let uid = present_uid(ctx, key).await?;
    left.retain(|task| is_of_another(task, uid.as_deref()));
    for task in left {
        node_tasks::remove_unchanged(ctx, &task).await?;
    }
    Ok(())
}

/// Deletes the snapshots of earlier machines of that name. The cluster's garbage collector does it, too, unless the machine
/// was deleted and created again while its watch was interrupted: then it sees one machine whose UID has changed.
pub(crate) async fn delete_snapshots(ctx: &Context, key: &Key) -> Outcome<()> {
    let known = ctx.stores.vm(key).and_then(|vm| vm.uid());
    let mut left = snapshots::known(ctx, key);
    left.retain(|one| is_left_behind(one, key, known.as_deref()));
    if left.is_empty() {
        return Ok(());
    }
    let uid = present_uid(ctx, key).await?;
    left.retain(|one| is_left_behind(one, key, uid.as_deref()));
    for one in left {
        snapshot::delete_unchanged(ctx, &one).await?;
    }
    Ok(())
}

/// UID of the machine of that name, by the API server: the machine may be newer than the store of machines, which is not of
/// the same moment as those of tasks and snapshots.
async fn present_uid(ctx: &Context, key: &Key) -> Outcome<Option<String>> {
    let api = Api::<VirtualMachine>::namespaced(ctx.client.clone(), &key.namespace);
    let found = api.get_metadata_opt(&key.name).await;
    let found = found.map_err(|source| {
        let what = format!("virtual machine {key}");
        Error::Read { what, source }
    })?;
    Ok(found.and_then(|vm| vm.uid()))
}

/// Whether all owners of a snapshot are earlier machines of that name: an object stays as long as it has one owner.
fn is_left_behind(snapshot: &VirtualMachineSnapshot, key: &Key, uid: Option<&str>) -> bool {
    let owners = snapshot.owner_references();
    let is_earlier = |owner: &OwnerReference| {
        owner.kind == "VirtualMachine" && owner.name == key.name && Some(owner.uid.as_str()) != uid
    };
    snapshot.metadata.deletion_timestamp.is_none()
        && !owners.is_empty()
        && owners.iter().all(is_earlier)
}

/// Whether the task belongs to a machine, and not to the one with that UID.
fn is_of_another(task: &VirtualMachineTask, uid: Option<&str>) -> bool {
    let owner = owner(task.owner_references()).map(|owner| owner.uid.as_str());
    let label = task.labels().get(VM_UID_LABEL).map(String::as_str);
    // A task in another namespace than its machine cannot have an owner.
    let machine = owner.or(label.filter(|_| task.spec.vm_namespace.is_some()));
    machine.is_some_and(|machine| Some(machine) != uid)
}

fn owner_name(pod: &Pod) -> Option<&str> {
    owner(pod.owner_references()).map(|owner| owner.name.as_str())
}

fn owner(all: &[OwnerReference]) -> Option<&OwnerReference> {
    let mut owners = all.iter();
    owners.find(|o| o.kind == "VirtualMachine" && o.controller == Some(true))
}
