//! The pod that has a claim mounted for a node, as a value.
//!
//! Invariant: pure: the same owner, claim and node give the same pod. Nothing boots in it, no user's container runs in it, and
//! Pod Security `restricted` admits it. It requests next to nothing, has no priority, and is bound to the node of the task by
//! the scheduler, which binds a claim that waits for its first consumer; taints of the node do not keep it away.
//! Failure: none.

use crds::names;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Desired;
use crate::flow::Outcome;
use crate::reconcile::vm::pods::BACKUP_TARGET;

/// Longest part of the owner's name in that of the pod.
const LONGEST_NAME: usize = 200;
/// The name of the volume.
const VOLUME: &str = "backups";
/// What the daemon takes for a machine of it: the least that one can have.
const MEMORY: &str = "64Mi";

/// Name of the pod of an owner.
pub(super) fn name(owner: &OwnerReference) -> String {
    let cut = owner.name.len().min(LONGEST_NAME);
    let begin = owner.name.get(..cut).unwrap_or_default();
    let digest = Sha256::digest(format!("{}/{}", owner.kind, owner.uid).as_bytes());
    let hash: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("{begin}-backup-target-{hash}")
}

/// The requirement that binds a pod to a node.
fn here(node: &str) -> Value {
    json!({ "key": "metadata.name", "operator": "In", "values": [node] })
}

/// Whether a pod that no node has yet is bound to this one.
pub(super) fn is_bound_to(pod: &Pod, node: &str) -> bool {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let nodes = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required = nodes.and_then(|nodes| {
        nodes
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let terms = required.map(|required| &required.node_selector_terms);
    let mut fields = terms
        .into_iter()
        .flatten()
        .flat_map(|term| &term.match_fields)
        .flatten();
    let is_here = |one: &NodeSelectorRequirement| {
        let values = one.values.iter().flatten();
        one.key == "metadata.name" && one.operator == "In" && values.eq([node])
    };
    fields.any(is_here)
}

/// The pod.
pub(super) fn draft(desired: &Desired<'_>) -> Outcome<Pod> {
    let Desired {
        namespace,
        claim,
        node,
        owner,
    } = desired;
    let nodes = json!({ "nodeSelectorTerms": [{ "matchFields": [here(node)] }] });
    let room = json!({ "cpu": "1m", "memory": "1Mi" });
    let pod = json!({
        "metadata": {
            "namespace": namespace,
            "labels": {
                names::POD_ROLE_LABEL: BACKUP_TARGET,
                names::EXCLUDE_FROM_BACKUP: "true",
            },
            "annotations": {
                names::POD_ROLE_LABEL: BACKUP_TARGET,
                names::BACKUP_TARGET_CLAIM: claim.uid,
                names::MEMORY: MEMORY,
                names::NETWORK: "none",
                names::SAFE_TO_EVICT: "false",
                names::DO_NOT_DISRUPT: "true",
                "kubernetes.io/target-runtime": names::RUNTIME_CLASS,
            },
        },
        "spec": {
            "runtimeClassName": names::RUNTIME_CLASS,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "affinity": {
                "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": nodes },
            },
            "tolerations": [{ "operator": "Exists" }],
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": names::MACHINE_USER,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "target",
                "image": names::NO_IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "resources": { "requests": room, "limits": room },
                "volumeMounts": [{ "name": VOLUME, "mountPath": names::BACKUP_TARGET_MOUNT }],
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] },
                },
            }],
            "volumes": [{
                "name": VOLUME,
                "persistentVolumeClaim": { "claimName": claim.name },
            }],
        },
    });
    let mut pod: Pod = serde_json::from_value(pod).map_err(anyhow::Error::new)?;
    pod.metadata.name = Some(name(owner));
    pod.owner_references_mut().push(OwnerReference {
        // Blocking the owner's deletion needs a right of its own, and nothing needs it.
        block_owner_deletion: None,
        ..owner.clone()
    });
    Ok(pod)
}
