//! The observed state of a machine's pod, and the decision about it.
//!
//! Invariant: decided once in a pass, from what was read at its beginning.
//! Failure: none; a desired state that contradicts itself is a failure that the decision names.

use std::sync::Arc;
use std::time::Duration;

use crds::{TaskKind, TaskState, VirtualMachine, VirtualMachineTask, names};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use lifecycle::backoff::Jitter;
use lifecycle::{
    Decision, Deletion, DesiredState, Instance, Machine, Meta, NodeState, Pending,
    StartPreconditions, Unstartable, Volumes, power,
};

use super::{group, pods};
use crate::context::{Key, Stores};
use crate::reconcile::vm::act::tasks;
use crate::reconcile::vm::pass::{Pass, View};
use crate::reconcile::vm::prerequisites;
use crate::shared::expectations;

/// Finalizer of a deletion that leaves dependents alone.
const ORPHAN: &str = "orphan";

/// Looks at the pod, and at what else a start depends on.
pub(crate) fn observe(pass: &mut Pass<'_>, pod: Option<Arc<Pod>>, volumes: Volumes) {
    let node = pod.as_deref().and_then(pods::node);
    let node_state = match node.map(|n| is_ready(pass, n)) {
        Some(false) => NodeState::NotReady,
        _ => NodeState::Ready,
    };
    let held = power::power_on_check(pass.vm.annotations()).map(str::to_owned);
    let held = held.or_else(|| group::holds_start(pass));
    let expected = &pass.ctx.shared.expected;
    let pending = expected.pending(pass.key, pod.as_deref(), pass.seconds());
    let before = std::mem::take(&mut pass.view);
    pass.view = View {
        is_known: true,
        instance: pod.as_deref().map(|p| Instance::from_pod(p, node_state)),
        pod,
        preconditions: StartPreconditions {
            pending,
            volumes,
            held,
            provisioner: None,
            save_failed: cannot_save(pass),
        },
        meta: meta(&pass.vm),
        ..before
    };
    record_image(pass);
    record_claim(pass);
}

/// The memory cannot be saved, or the node has failed to do it a moment ago.
fn cannot_save(pass: &Pass<'_>) -> bool {
    let has_failed = |task: &Arc<VirtualMachineTask>| {
        let status = task.status.as_ref();
        task.spec.kind == TaskKind::Save
            && status.and_then(|status| status.state) == Some(TaskState::Error)
    };
    power::unsuspendable(&pass.vm.spec).is_some() || tasks::all(pass).iter().any(has_failed)
}

/// The image that a root claim was filled from, once its guest has run: from then on it is the
/// disk's.
fn record_image(pass: &mut Pass<'_>) {
    let spec = &pass.vm.spec;
    let names_image = spec.image.is_some() || spec.image_name.is_some();
    let is_recorded = pass.seen().is_some_and(|s| s.image.is_some());
    let instance = pass.view.instance.as_ref();
    let has_run = instance.is_some_and(Instance::ever_ran);
    if pass.root_claim().is_none() || !names_image || is_recorded || !has_run {
        return;
    }
    let pod = pass.view.pod.as_deref();
    let image = pod.and_then(pods::image).map(str::to_owned);
    let url = pod.and_then(|pod| pods::annotation(pod, names::IMAGE_URL));
    let url = url.map(str::to_owned);
    let status = pass.status();
    (status.image, status.image_url) = (image, url);
}

/// The claim, named by the machine, on which its guest has run: the image in it is whole. The registry may
/// drop the version of an image that follows a tag, so that later pods are not to need it. A claim that a revert made
/// for a storage class is as the one in whose place it is, which needs its image once.
fn record_claim(pass: &mut Pass<'_>) {
    let instance = pass.view.instance.as_ref();
    let has_run = instance.is_some_and(Instance::ever_ran);
    let Some(claim) = prerequisites::named_root_claim(pass).filter(|_| has_run) else {
        return;
    };
    // The pod of an earlier claim of that name has run on that one.
    let pod = pass.view.pod.as_deref();
    let made = pod.and_then(ResourceExt::creation_timestamp);
    let is_of_pod = claim.creation_timestamp() <= made;
    if let Some(uid) = claim.uid().filter(|_| is_of_pod)
        && (prerequisites::follows_tag(pass) || prerequisites::is_made_root_claim(pass, &claim))
    {
        let annotations = pass.vm.annotations_mut();
        annotations.insert(names::ROOT_CLAIM_UID.to_owned(), uid);
    }
}

/// Says why the placeholder does not get on.
pub(crate) fn look_at_placeholder(pass: &mut Pass<'_>, pod: &Pod) {
    let seen: Option<Unstartable> = Instance::from_pod(pod, NodeState::Ready).unstartable;
    pass.view.preconditions.provisioner = seen;
}

/// What should be done; the draft takes over what the decision says of the status.
pub(crate) fn decide(pass: &mut Pass<'_>) -> Decision {
    let jitter = Jitter::new((pass.ctx.random)());
    let status = pass.vm.status.clone().unwrap_or_default();
    let machine = Machine {
        spec: &pass.vm.spec,
        status: &status,
        meta: &pass.view.meta,
        instance: pass.view.instance.as_ref(),
        preconditions: &pass.view.preconditions,
    };
    let decision = lifecycle::desired(&machine, &pass.now, jitter);
    let mut next = decision.status.clone();
    pass.writes.pops_request =
        next.state_change_requests.len() < status.state_change_requests.len();
    // The queue itself is changed by its own patch only.
    next.state_change_requests = status.state_change_requests;
    pass.vm.status = Some(next);
    if let Some(delay) = decision.requeue {
        pass.requeue_within(delay);
    }
    if pass.view.preconditions.pending != Pending::Nothing {
        pass.requeue_within(Duration::from_secs(expectations::TIMEOUT.unsigned_abs()));
    }
    let pod = pass.view.pod.clone();
    let is_unplaced = |p: &Arc<Pod>| pods::is_deleting(p) && pods::is_over(p);
    pass.writes.releases = pod.filter(|p| decision.release || is_unplaced(p));
    decision
}

/// What the metadata of a machine say.
fn meta(vm: &VirtualMachine) -> Meta {
    let deletion = match vm.metadata.deletion_timestamp {
        None => Deletion::No,
        Some(_) if vm.finalizers().iter().any(|f| f == ORPHAN) => Deletion::Orphan,
        Some(_) => Deletion::WithInstance,
    };
    Meta {
        generation: vm.metadata.generation.unwrap_or_default(),
        deletion,
        resume: DesiredState::remembered(vm.annotations()),
        unpause: vm.annotations().get(names::UNPAUSE_REQUEST).cloned(),
    }
}

/// Whether the deletion leaves dependents alone.
pub(crate) fn is_orphaning(vm: &VirtualMachine) -> bool {
    meta(vm).deletion == Deletion::Orphan
}

pub(crate) fn node(pass: &Pass<'_>, name: &str) -> Option<Arc<Node>> {
    named(&pass.ctx.stores, name)
}

fn named(stores: &Stores, name: &str) -> Option<Arc<Node>> {
    stores.nodes.get(&Key::new("", name).reference())
}

/// The node exists and reports.
pub(crate) fn is_ready(pass: &Pass<'_>, name: &str) -> bool {
    reports(&pass.ctx.stores, name)
}

/// The same, outside of a pass.
pub(crate) fn reports(stores: &Stores, name: &str) -> bool {
    let Some(node) = named(stores, name) else {
        return false;
    };
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let mut all = conditions.flatten();
    all.any(|c| c.type_ == "Ready" && c.status == "True")
}
