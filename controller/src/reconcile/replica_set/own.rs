//! Adopts machines without a controller, and releases those with changed labels.
//!
//! Invariant: each write carries the UID and the version of the machine that was read; other owners stay.
//! Failure: a machine that changed meanwhile is looked at again.

use crds::VirtualMachine;
use crds::VirtualMachineReplicaSet;
use crds::names::{REPLICA_INDEX_LABEL, REPLICA_SET_LABEL, TEMPLATE_REVISION_LABEL};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::act::{MANAGER, failed};
use super::{Work, machine};
use crate::context::Context;
use crate::reconcile::answers::{is_conflict, is_gone};

/// Makes the set the controller of the machine.
pub(super) async fn adopt(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    vm: &VirtualMachine,
    index: u32,
    work: &mut Work,
) {
    let mut owners = vm.owner_references().to_vec();
    owners.push(machine::owner(set));
    let labels =
        json!({ REPLICA_SET_LABEL: set.name_any(), REPLICA_INDEX_LABEL: index.to_string() });
    if write(ctx, vm, &owners, labels, work).await {
        let text = format!("adopted machine {}", vm.name_any());
        ctx.events.normal(set, "MachineAdopted", &text);
        tracing::info!(
            machine = vm.name_any(),
            "machine adopted by its replica set"
        );
    }
}

/// Leaves the machine to its owner.
pub(super) async fn release(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    vm: &VirtualMachine,
    work: &mut Work,
) {
    let mut owners = vm.owner_references().to_vec();
    owners.retain(|owner| Some(&owner.uid) != set.metadata.uid.as_ref());
    let labels = json!({
        REPLICA_SET_LABEL: null, REPLICA_INDEX_LABEL: null, TEMPLATE_REVISION_LABEL: null,
    });
    if write(ctx, vm, &owners, labels, work).await {
        let text = format!(
            "released machine {}: its labels are not those of the selector",
            vm.name_any()
        );
        ctx.events.normal(set, "MachineReleased", &text);
        tracing::info!(
            machine = vm.name_any(),
            "machine released by its replica set"
        );
    }
}

/// Whether the machine was written.
async fn write(
    ctx: &Context,
    vm: &VirtualMachine,
    owners: &[OwnerReference],
    labels: Value,
    work: &mut Work,
) -> bool {
    let name = vm.name_any();
    let namespace = vm.namespace().unwrap_or_default();
    let body = json!({ "metadata": {
        "uid": vm.uid(),
        "resourceVersion": vm.resource_version(),
        "ownerReferences": owners,
        "labels": labels,
    } });
    let api = Api::<VirtualMachine>::namespaced(ctx.client.clone(), &namespace);
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    match api
        .patch_metadata(&name, &params, &Patch::Merge(body))
        .await
    {
        Ok(_) => return true,
        Err(error) if is_gone(&error) => {}
        Err(error) if is_conflict(&error) => work.conflicts += 1,
        Err(error) => failed(
            work,
            "OwnerRefused",
            &format!("write the owner of machine {name}"),
            error,
        ),
    }
    false
}
