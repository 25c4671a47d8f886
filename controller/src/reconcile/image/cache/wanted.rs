//! Which nodes need the files of an image.
//!
//! Invariant: reads the stores alone. A machine needs them on the node of its placeholder until its
//! disk is made, and uses them afterwards on the node of its disk.
//! Failure: none; a machine that is being deleted needs nothing.

use std::collections::BTreeMap;

use crds::VirtualMachine;
use crds::conditions::{self, CREATED};
use kube::ResourceExt;

use super::Subject;
use crate::context::{Context, Relation};
use crate::reconcile::image::pre_pull;
use crate::reconcile::vm::placeholder;

/// Why a node needs the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Want {
    /// Since when a machine waits for them there, in seconds; the last one that began to.
    pub(super) waits_since: Option<i64>,
    /// A placeholder of the image has started there: the node has the files.
    pub(super) is_seen: bool,
    /// `spec.prePull` requests them.
    pub(super) is_pre_pulled: bool,
}

/// By node.
pub(super) fn gather(ctx: &Context, subject: &Subject<'_>) -> BTreeMap<String, Want> {
    let mut all = BTreeMap::<String, Want>::new();
    let image = subject.named.name.as_str();
    let relation = Relation::Image(subject.object.key());
    for vm in ctx.stores.vms_with(&relation) {
        if vm.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if is_created(&vm) {
            let status = vm.status.iter();
            let status = status.filter(|status| status.image.as_deref() == Some(image));
            for node in status.filter_map(|status| status.node_name.clone()) {
                all.entry(node).or_default();
            }
            continue;
        }
        let uid = vm.uid().unwrap_or_default();
        for pod in ctx.stores.pods_of(&uid) {
            let Some(place) = placeholder::place(&pod, image) else {
                continue;
            };
            let want = all.entry(place.node.to_owned()).or_default();
            want.is_seen |= place.has_image;
            if !place.has_image {
                want.waits_since = want.waits_since.max(Some(place.since));
            }
        }
    }
    // No server has a former file for a node that is without it.
    if !subject.object.needs_credentials()
        && !subject.object.has_former_file()
        && let Some(requested) = subject.object.pre_pull()
    {
        let agents = ctx.stores.agents.known();
        for node in pre_pull::matching(ctx, requested).into_keys() {
            if agents.contains(&node) {
                all.entry(node).or_default().is_pre_pulled = true;
            }
        }
    }
    all
}

fn is_created(vm: &VirtualMachine) -> bool {
    let status = vm.status.as_ref();
    status.is_some_and(|status| conditions::is_true(&status.conditions, CREATED))
}
