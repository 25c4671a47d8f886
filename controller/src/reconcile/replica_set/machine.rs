//! A machine as the template of its set describes it.
//!
//! Invariant: a function of the set and the index; pods of the machine have the labels of the selector, by
//! which a HorizontalPodAutoscaler finds them.
//! Failure: none.

use crds::names::{REPLICA_INDEX_LABEL, REPLICA_SET_LABEL, TEMPLATE_REVISION_LABEL};
use crds::{VirtualMachine, VirtualMachineReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use super::{claims, machine_name};

/// The set as the owner of a machine.
pub(super) fn owner(set: &VirtualMachineReplicaSet) -> OwnerReference {
    OwnerReference {
        block_owner_deletion: Some(true),
        ..set.controller_owner_ref(&()).unwrap_or_default()
    }
}

/// The machine of this index.
pub(super) fn machine(
    set: &VirtualMachineReplicaSet,
    index: u32,
    revision: &str,
) -> VirtualMachine {
    let template = &set.spec.template;
    let mut vm = VirtualMachine::new(&machine_name(set, index), template.spec.clone());
    let mut labels = template.metadata.labels.clone();
    labels.insert(REPLICA_SET_LABEL.to_owned(), set.name_any());
    labels.insert(REPLICA_INDEX_LABEL.to_owned(), index.to_string());
    labels.insert(TEMPLATE_REVISION_LABEL.to_owned(), revision.to_owned());
    vm.metadata.namespace = set.namespace();
    vm.metadata.labels = Some(labels);
    vm.metadata.annotations = Some(template.metadata.annotations.clone());
    vm.metadata.owner_references = Some(vec![owner(set)]);
    let volumes = vm.spec.volumes.iter_mut();
    for claim in volumes.filter_map(|volume| volume.persistent_volume_claim.as_mut()) {
        if claims::template(set, &claim.claim_name).is_some() {
            claim.claim_name = claims::name(set, &claim.claim_name, index);
        }
    }
    let pods = vm.spec.template.get_or_insert_default();
    let selected = set.spec.selector.match_labels.clone();
    pods.metadata.labels.extend(selected);
    vm
}
