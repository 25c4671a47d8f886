//! The pods of a machine, as values.
//!
//! Invariant: pure: the same machine, size and place give the same pod; labels and annotations come
//! from the template only, and ours win.
//! Failure: none; what a node cannot do yet is in the pod all the same.

mod annotations;
mod container;
mod firmware;
mod guest_data;
mod placement;
#[cfg(test)]
mod tests;

pub(crate) use annotations::{DEFAULT_NETWORK, NETWORKS};
pub(crate) use container::EPHEMERAL_STORAGE;
pub(crate) use placement::asked;

use std::collections::BTreeMap;

use crds::{IpAssurance, VirtualMachine, names};
use k8s_openapi::api::core::v1::{
    LocalObjectReference, Pod, PodReadinessGate, PodSchedulingGate, PodSecurityContext, PodSpec,
    SeccompProfile,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::reconcile::group::placement::Grouping;
use crate::reconcile::vm::observe::pods::{INSTANCE, PROVISION};
use crate::reconcile::vm::prerequisites::Prerequisites;

/// Keys that say which machine a pod is, and what its disk is.
const OURS: [&str; 17] = [
    names::DEVICES,
    names::DISK_GENERATION,
    names::VM_UID_LABEL,
    names::POD_ROLE_LABEL,
    names::VM_DISK,
    names::INSTANCE_UUID,
    names::BIOS_UUID,
    names::RESTORE,
    names::START_PAUSED,
    names::GENERATION,
    names::REVISION,
    names::GUEST_FACTS,
    names::DISK_IMAGE,
    names::IMAGE_URL,
    names::IMAGE_TLS_SECRET,
    names::IP_ASSURANCE,
    names::FILE_DISKS,
];

/// Everything that a pod is built from.
#[derive(Debug, Clone)]
pub(crate) struct Plan<'a> {
    pub(crate) vm: &'a VirtualMachine,
    pub(crate) uid: &'a str,
    pub(crate) owner: OwnerReference,
    pub(crate) prerequisites: &'a Prerequisites,
    /// The node that has the root disk.
    pub(crate) node: Option<&'a str>,
    /// Nodes that are no good for a new one.
    pub(crate) avoid: &'a [String],
    /// Nodes that have the image of a new one.
    pub(crate) prefer: &'a [String],
    /// The groups of the machine.
    pub(crate) grouping: Option<&'a Grouping>,
    /// UID under which that node keeps it; none for a root disk in a claim.
    pub(crate) disk: Option<&'a str>,
    /// What the node is to keep free for that disk.
    pub(crate) disk_request: Option<Quantity>,
    pub(crate) instance_uuid: &'a str,
    pub(crate) bios_uuid: &'a str,
    pub(crate) machine_type: Option<&'a str>,
    pub(crate) grace_seconds: u32,
    /// Start with standing vCPUs.
    pub(crate) paused: bool,
    /// Resume saved memory.
    pub(crate) restore: bool,
    /// A placeholder has to make room first.
    pub(crate) is_gated: bool,
}

/// Name of a machine's placeholder. No machine can have it: names of machines have at most 63
/// characters.
pub(crate) fn placeholder_name(vm: &str, uid: &str) -> String {
    format!("{vm}{}{uid}", names::PLACEHOLDER_OF)
}

/// The value for what proves an address.
pub(crate) const fn assurance(of: IpAssurance) -> &'static str {
    match of {
        IpAssurance::Guest => "Guest",
        IpAssurance::PodIP => "PodIP",
    }
}

/// The pod that is the machine.
pub(crate) fn instance(plan: &Plan<'_>) -> Pod {
    let mut pod = base(plan, INSTANCE);
    pod.metadata.name.clone_from(&plan.vm.metadata.name);
    pod.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
    let template = plan.vm.spec.template.clone().unwrap_or_default().metadata;
    // The template may allow autoscalers what harms no disk.
    let mut all = BTreeMap::from(annotations::undisturbed());
    all.extend(allowed(template.annotations));
    all.extend(annotations::for_instance(plan));
    pod.metadata.annotations = Some(all);
    gate(&mut pod, names::PLACEHOLDER_GATE, plan.is_gated);
    pod
}

/// The pod that chooses a node, brings the image there and holds the machine's place: for the
/// scheduler it is the machine, with its labels, affinity and requests; nothing boots in it.
pub(crate) fn placeholder(plan: &Plan<'_>) -> Pod {
    let mut pod = base(plan, PROVISION);
    let name = plan.vm.metadata.name.as_deref().unwrap_or_default();
    pod.metadata.name = Some(placeholder_name(name, plan.uid));
    pod.metadata.annotations = Some(annotations::of_placeholder(plan));
    if let Some(spec) = &mut pod.spec {
        spec.readiness_gates = Some(vec![PodReadinessGate {
            condition_type: names::PLACEHOLDER_READINESS_GATE.to_owned(),
        }]);
    }
    gate(&mut pod, names::PROVISIONING_GATE, plan.is_gated);
    pod
}

fn gate(pod: &mut Pod, name: &str, is_gated: bool) {
    if let Some(spec) = pod.spec.as_mut().filter(|_| is_gated) {
        let name = name.to_owned();
        spec.scheduling_gates = Some(vec![PodSchedulingGate { name }]);
    }
}

/// A template's keys, without those that only the controller or an administrator may give a pod:
/// the template is its owner's, the pod is made with the controller's rights.
fn allowed(mut keys: BTreeMap<String, String>) -> BTreeMap<String, String> {
    keys.retain(|key, _| {
        let domain = key.split('/').next().unwrap_or_default();
        !OURS.contains(&key.as_str()) && !domain.ends_with(".protected")
    });
    keys
}

/// What Pod Security `restricted` requires, and no pod of a machine lacks. The user is a statement
/// only: a node runs nothing of a machine as it.
fn security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(i64::from(names::MACHINE_USER)),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

fn base(plan: &Plan<'_>, role: &str) -> Pod {
    let template = plan.vm.spec.template.clone().unwrap_or_default().metadata;
    // Placeholders have them, too: affinity between machines goes by labels.
    let mut labels = allowed(template.labels);
    labels.insert(names::VM_UID_LABEL.to_owned(), plan.uid.to_owned());
    labels.insert(names::POD_ROLE_LABEL.to_owned(), role.to_owned());
    labels.extend(plan.grouping.map(Grouping::label));
    let size = &plan.prerequisites.size;
    let is_instance = role == INSTANCE;
    let spec = &plan.vm.spec;
    let network = spec.network.as_ref();
    Pod {
        metadata: ObjectMeta {
            namespace: plan.vm.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![plan.owner.clone()]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            runtime_class_name: Some(size.runtime_class.clone()),
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(i64::from(plan.grace_seconds)),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            hostname: network.and_then(|n| n.host_name.clone()),
            image_pull_secrets: plan
                .prerequisites
                .image
                .pull_secret
                .clone()
                .filter(|_| !plan.prerequisites.image.is_on_disk)
                .map(|name| vec![LocalObjectReference { name }]),
            node_selector: placement::node_selector(plan),
            affinity: placement::affinity(plan),
            tolerations: placement::tolerations(plan),
            topology_spread_constraints: placement::constraints(plan),
            priority_class_name: spec.priority_class_name.clone(),
            scheduler_name: spec.scheduler_name.clone(),
            security_context: Some(security()),
            containers: vec![container::for_pod(plan, is_instance)],
            volumes: container::volumes(plan, is_instance),
            ..PodSpec::default()
        }),
        status: None,
    }
}
