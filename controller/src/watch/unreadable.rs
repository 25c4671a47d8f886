//! Objects of a watched kind that cannot be read.
//!
//! Invariant: such an object stops nothing: it is reported once, by a log line and an event, and
//! counted as long as it exists; no later object waits for it.
//! Failure: none.

use std::collections::HashSet;
use std::mem;

use crds::guard::Guarded;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

use super::Reports;
use crate::stores::Key;

/// Reason of the event about such an object.
const REASON: &str = "Unreadable";

/// Those of one kind, by UID.
pub(super) struct Unreadable {
    kind: &'static str,
    known: HashSet<String>,
    /// Found by the list in progress.
    listed: HashSet<String>,
    reports: Reports,
}

impl Unreadable {
    pub(super) fn new(kind: &'static str, reports: &Reports) -> Self {
        Self {
            kind,
            known: HashSet::new(),
            listed: HashSet::new(),
            reports: reports.clone(),
        }
    }

    /// Takes an event of the watch in.
    pub(super) fn note<K: Resource<DynamicType = ()>>(&mut self, event: &Event<Guarded<K>>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitDone => self.known = mem::take(&mut self.listed),
            Event::InitApply(object) if object.0.is_err() => {
                self.listed.insert(object.uid().unwrap_or_default());
                self.found(object);
            }
            Event::Apply(object) if object.0.is_err() => self.found(object),
            Event::Apply(object) | Event::Delete(object) if !self.known.is_empty() => {
                self.known.remove(&object.uid().unwrap_or_default());
            }
            Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => return,
        }
        self.reports.metrics.unreadable(self.kind, self.known.len());
    }

    fn found<K: Resource<DynamicType = ()>>(&mut self, object: &Guarded<K>) {
        let Err(unreadable) = &object.0 else {
            return;
        };
        if !self.known.insert(object.uid().unwrap_or_default()) {
            return;
        }
        let kind = self.kind;
        let key = Key::from_object(object);
        tracing::warn!(kind, %key, error = unreadable.error, "object ignored, it cannot be read");
        let message = format!(
            "the controller ignores this object as it is now, since it cannot read it: {unreadable}"
        );
        self.reports.events.warning(object, REASON, &message);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::events::Events;
    use crate::metrics::Metrics;

    type Sent = Event<Guarded<PersistentVolumeClaim>>;

    fn claim(name: &str, phase: &serde_json::Value) -> Guarded<PersistentVolumeClaim> {
        let object = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": name },
            "status": { "phase": phase },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn it_is_reported_once_and_counted_while_it_is_there() {
        let (events, mut queue) = Events::channel();
        let metrics = Arc::new(Metrics::default());
        let reports = Reports {
            metrics: Arc::clone(&metrics),
            events,
        };
        let mut unreadable = Unreadable::new("claims", &reports);
        let good = || claim("good", &json!("Bound"));
        let bad = || claim("bad", &json!(7));
        let mut then = |events: Vec<Sent>, count: usize| {
            events.iter().for_each(|event| unreadable.note(event));
            let line = format!("vmlet_unreadable_objects{{kind=\"claims\"}} {count}\n");
            assert!(metrics.text().contains(&line), "{}", metrics.text());
        };
        let listed = || {
            let objects = [Event::InitApply(good()), Event::InitApply(bad())];
            let mut all = vec![Event::Init];
            all.extend(objects);
            all.push(Event::InitDone);
            all
        };
        then(listed(), 1);
        then(listed(), 1);
        then(vec![Event::Apply(bad()), Event::Apply(good())], 1);
        then(vec![Event::Delete(bad())], 0);
        let reported = queue.try_recv().unwrap();
        assert_eq!(reported.reason, REASON);
        assert_eq!(reported.object.name.as_deref(), Some("bad"));
        assert_eq!(
            reported.object.kind.as_deref(),
            Some("PersistentVolumeClaim")
        );
        assert!(queue.try_recv().is_err(), "once");
        then(vec![Event::Apply(bad())], 1);
        then(vec![Event::Apply(claim("bad", &json!("Bound")))], 0);
        then(vec![Event::Apply(bad())], 1);
        then(vec![Event::Init, Event::InitDone], 0);
    }
}
