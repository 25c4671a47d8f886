//! Wakes the task that updates the status: changes of the objects that it depends on.
//!
//! Invariant: frequent changes without information (heartbeats of nodes, renewals of leases) cause
//! no pass.
//! Failure: a watch that breaks off begins again after a delay that grows to 30 s, and then tells what
//! it missed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;

use crds::guard::Guarded;
use crds::names::{NODE_FACTS, NODE_READY};
use futures_util::future::ready;
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::watcher::{Error, Event};
use serde_json::{Value, json};

/// What counts of an object; nothing of one that cannot be read.
pub(super) fn readable<K>(object: &Guarded<K>, essence: fn(&K) -> String) -> String {
    object.0.as_ref().map(essence).unwrap_or_default()
}

/// A node without its heartbeat, its images and its measurements.
pub(super) fn node(node: &Node) -> String {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let said = |kind: &str| {
        let found = conditions.and_then(|all| all.iter().find(|c| c.type_ == kind));
        found.map(|c| (&c.status, &c.reason, &c.message))
    };
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    let handlers = status.and_then(|status| status.runtime_handlers.as_ref());
    json!([
        said("Ready"),
        said(NODE_READY),
        cordoned,
        handlers,
        node.labels()
    ])
    .to_string()
}

/// A lease without the time of its renewal and without amounts of bytes, of which nearly every
/// renewal has others: a lease that is late, and a disk that is full, are found by a pass by time.
pub(super) fn lease(lease: &Lease) -> String {
    let mut annotations = lease.annotations().clone();
    let facts = annotations.get(NODE_FACTS);
    let facts = facts.and_then(|text| serde_json::from_str(text).ok());
    if let Some(facts) = facts {
        let facts = without_bytes(facts).to_string();
        annotations.insert(NODE_FACTS.to_owned(), facts);
    }
    json!([lease.labels(), annotations]).to_string()
}

fn without_bytes(facts: Value) -> Value {
    match facts {
        Value::Object(fields) => {
            let fields = fields.into_iter();
            let counted = fields.filter(|(name, _)| !name.ends_with("Bytes"));
            Value::Object(
                counted
                    .map(|(name, one)| (name, without_bytes(one)))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_bytes).collect()),
        other => other,
    }
}

/// One item for each event after which what counts of an object is another, or an object is new or
/// gone; and for the first list or the first failure, whichever it is.
pub(super) fn changes<K: ResourceExt>(
    events: impl Stream<Item = Result<Event<K>, Error>>,
    essence: impl Fn(&K) -> String,
) -> impl Stream<Item = ()> {
    let mut seen = Seen::default();
    let mut failed = false;
    events.filter_map(move |event| {
        let changed = match event {
            Ok(event) => seen.take(&event, &essence),
            Err(error) => {
                tracing::debug!(%error, "watch of the installation's objects failed");
                !mem::replace(&mut failed, true)
            }
        };
        ready(changed.then_some(()))
    })
}

/// What counts of every object, as a hash of it.
#[derive(Debug, Default)]
struct Seen {
    known: HashMap<String, u64>,
    listed: HashMap<String, u64>,
    was_listed: bool,
}

impl Seen {
    fn take<K: ResourceExt>(&mut self, event: &Event<K>, essence: impl Fn(&K) -> String) -> bool {
        let entry = |object: &K| {
            let mut hasher = DefaultHasher::new();
            essence(object).hash(&mut hasher);
            (name(object), hasher.finish())
        };
        match event {
            Event::Apply(object) => {
                let (name, hash) = entry(object);
                self.known.insert(name, hash) != Some(hash)
            }
            Event::Delete(object) => self.known.remove(&name(object)).is_some(),
            Event::Init => {
                self.listed.clear();
                false
            }
            Event::InitApply(object) => {
                self.listed.extend([entry(object)]);
                false
            }
            Event::InitDone => {
                let listed = mem::take(&mut self.listed);
                let is_first = !mem::replace(&mut self.was_listed, true);
                mem::replace(&mut self.known, listed) != self.known || is_first
            }
        }
    }
}

fn name(object: &impl ResourceExt) -> String {
    let namespace = object.namespace().unwrap_or_default();
    format!("{namespace}/{}", object.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_with(name: &str, ready: &str, heartbeat: &str) -> Node {
        let object = json!({
            "metadata": { "name": name, "resourceVersion": heartbeat },
            "status": { "conditions": [{
                "type": "Ready", "status": ready, "lastHeartbeatTime": heartbeat,
            }]},
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn heartbeats_wake_no_machine_and_changes_and_ends_do() {
        let early = "2026-01-01T00:00:00Z";
        let late = "2026-01-01T00:05:00Z";
        let mut seen = Seen::default();
        let mut take = |event: Event<Node>| seen.take(&event, node);
        assert!(!take(Event::Init) && !take(Event::InitApply(node_with("a", "True", early))));
        assert!(take(Event::InitDone), "the first list");
        assert!(
            !take(Event::Apply(node_with("a", "True", late))),
            "a heartbeat"
        );
        assert!(take(Event::Apply(node_with("a", "False", late))));
        assert!(
            take(Event::Apply(node_with("b", "True", late))),
            "a new one"
        );
        assert!(take(Event::Delete(node_with("b", "True", late))));
        assert!(!take(Event::Init) && !take(Event::InitApply(node_with("a", "False", late))));
        assert!(!take(Event::InitDone), "a list with nothing new");
        assert!(!take(Event::Init));
        assert!(take(Event::InitDone), "it is gone");
    }

    #[test]
    fn a_renewed_lease_is_no_change_and_a_new_fact_is() {
        let object = |facts: &str, renewed: &str| -> Lease {
            serde_json::from_value(json!({
                "metadata": { "name": "n", "annotations": { "facts": facts } },
                "spec": { "renewTime": renewed },
            }))
            .unwrap()
        };
        let early = "2026-01-01T00:00:00.000000Z";
        let late = "2026-01-01T00:00:10.000000Z";
        assert_eq!(lease(&object("up", early)), lease(&object("up", late)));
        assert_ne!(lease(&object("up", early)), lease(&object("down", early)));
    }

    #[test]
    fn amounts_of_bytes_are_no_change() {
        let object = |bytes: u64, reachable: bool| -> Lease {
            let daemon = json!({ "reachable": reachable, "diskAvailableBytes": bytes });
            let facts = json!({ "daemon": daemon }).to_string();
            serde_json::from_value(json!({
                "metadata": { "name": "n", "annotations": { NODE_FACTS: facts } },
            }))
            .unwrap()
        };
        assert_eq!(lease(&object(1, true)), lease(&object(2, true)));
        assert_ne!(lease(&object(1, true)), lease(&object(1, false)));
    }
}
