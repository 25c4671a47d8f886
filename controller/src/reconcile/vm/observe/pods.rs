//! Reads the state of a pod.
//!
//! Invariant: reads only what kubelet and the API server write; a field that is missing is an
//! answer, too.
//! Failure: none.

use crds::names;
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::ResourceExt;

/// Role of a machine's running pod.
pub(crate) const INSTANCE: &str = "instance";
/// Role of the pod that chooses a node.
pub(crate) const PROVISION: &str = "provision";

/// Role of the pod that has a claim with backups mounted.
pub(crate) const BACKUP_TARGET: &str = "backup-target";

pub(crate) fn role(pod: &Pod) -> &str {
    pod.labels()
        .get(names::POD_ROLE_LABEL)
        .map_or("", String::as_str)
}

pub(crate) fn phase(pod: &Pod) -> &str {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    phase.unwrap_or_default()
}

pub(crate) fn is_final(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub(crate) fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Nothing of it runs anywhere, or ever will.
pub(crate) fn is_over(pod: &Pod) -> bool {
    is_final(pod) || (is_deleting(pod) && node(pod).is_none())
}

pub(crate) fn node(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
    node.filter(|n| !n.is_empty())
}

pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.annotations().get(key).map(String::as_str)
}

/// Name of the image of its only container, or of the one that its root disk was made from.
pub(crate) fn image(pod: &Pod) -> Option<&str> {
    if let Some(recorded) = annotation(pod, names::DISK_IMAGE) {
        return Some(recorded);
    }
    let container = pod.spec.as_ref()?.containers.first()?;
    container.image.as_deref()
}

/// State of its only container.
pub(crate) fn state(pod: &Pod) -> Option<&ContainerState> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.first()?.state.as_ref()
}

/// Why its container waits, such as `ErrImagePull`, with kubelet's message.
pub(crate) fn waiting(pod: &Pod) -> Option<(&str, &str)> {
    let waiting = state(pod)?.waiting.as_ref()?;
    let message = waiting.message.as_deref().unwrap_or_default();
    Some((waiting.reason.as_deref()?, message))
}

/// Why it has ended, with the message, as kubelet or its container says.
pub(crate) fn end(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let ended = state(pod).and_then(|state| state.terminated.as_ref());
    let reason = status.reason.as_deref();
    let reason = reason.or_else(|| ended.and_then(|ended| ended.reason.as_deref()));
    let message = status.message.as_deref();
    let message = message.or_else(|| ended.and_then(|ended| ended.message.as_deref()));
    let parts: Vec<_> = [reason, message].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(": "))
}

/// Whether the guest of a pod runs.
pub(crate) fn runs(pod: &Pod) -> bool {
    !is_final(pod) && state(pod).is_some_and(|s| s.running.is_some())
}

/// Why the scheduler cannot place it.
pub(crate) fn unschedulable(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|c| c.type_ == "PodScheduled")?;
    let is_stuck =
        scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable");
    is_stuck.then(|| scheduled.message.as_deref().unwrap_or_default())
}

/// Its owner, if one controls it.
pub(crate) fn controller_uid(pod: &Pod) -> Option<&str> {
    let mut owners = pod.owner_references().iter();
    let owner = owners.find(|o| o.controller == Some(true));
    owner.map(|o| o.uid.as_str())
}
