//! Quotas, limit ranges and labels of namespaces (Pod Security), which may refuse what a machine is
//! made of.
//!
//! Invariant: only machines that the API server refused something are woken, and by nothing but
//! what may end the refusal: room that became free wakes the few that wait longest, since each of
//! them may take it; a change of the limits themselves wakes all.
//! Failure: none; a machine that is not woken looks again after its back-off.

use std::collections::BTreeMap;

use crds::VirtualMachine;
use crds::conditions::{self, FAILURE};
use k8s_openapi::api::core::v1::{LimitRange, Namespace, ResourceQuota, ResourceQuotaStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use super::{Wakes, with};
use crate::reconcile::vm::thousandths;
use crate::stores::{Change, Key, Relation, Stores};

/// Most machines that room in a quota wakes: each pass of one that still does not fit is a request
/// in vain.
const MOST: usize = 16;

impl Wakes for ResourceQuota {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        let namespace = change.object().namespace().unwrap_or_default();
        match change {
            Change::Created { .. } => Vec::new(),
            Change::Deleted { .. } => refused(stores, namespace),
            Change::Updated { old, new, .. } => {
                let none = ResourceQuotaStatus::default();
                let before = old.status.as_ref().unwrap_or(&none);
                let now = new.status.as_ref().unwrap_or(&none);
                // The API server counts by these limits, which follow the specification.
                if before.hard != now.hard {
                    return refused(stores, namespace);
                }
                if has_more_room(before.used.as_ref(), now.used.as_ref()) {
                    return waiting_longest(stores, namespace);
                }
                Vec::new()
            }
        }
    }
}

impl Wakes for PartialObjectMeta<LimitRange> {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        if change.is_routine() {
            return Vec::new();
        }
        refused(stores, change.object().namespace().unwrap_or_default())
    }
}

impl Wakes for PartialObjectMeta<Namespace> {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        match change {
            Change::Updated { old, new, .. } if old.labels() != new.labels() => {
                refused(stores, new.name_any())
            }
            _ => Vec::new(),
        }
    }
}

/// The machines of a namespace that the API server refused something.
fn refused(stores: &Stores, namespace: String) -> Vec<Key> {
    with(stores, &Relation::Refused(namespace))
}

fn waiting_longest(stores: &Stores, namespace: String) -> Vec<Key> {
    let mut waiting = stores.vms_with(&Relation::Refused(namespace));
    waiting.sort_by_key(|vm| since(vm));
    let first = waiting.iter().take(MOST);
    first.map(|vm| Key::from_object(&**vm)).collect()
}

/// The second since which the machine has failed.
fn since(vm: &VirtualMachine) -> Option<i64> {
    let conditions = &vm.status.as_ref()?.conditions;
    let failure = conditions::find(conditions, FAILURE)?;
    Some(failure.last_transition_time.0.as_second())
}

/// Less is in use of anything that is counted.
fn has_more_room(
    before: Option<&BTreeMap<String, Quantity>>,
    now: Option<&BTreeMap<String, Quantity>>,
) -> bool {
    let mut before = before.into_iter().flatten();
    before.any(|(resource, before)| {
        let now = now.and_then(|now| now.get(resource));
        now.and_then(thousandths) < thousandths(before)
    })
}
