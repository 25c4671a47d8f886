//! Brings the `ImageMapping` objects of the cluster to the daemon, and says in their status whether
//! it uses them.
//!
//! Invariant: the daemon always gets all of them; one that cannot be read or completed here keeps
//! the rules that the daemon has of it. The content of Secrets is in no log, status or event.
//! Failure: while API server or daemon are away, the daemon works with the last rules, and the next
//! attempt follows.

mod report;
mod rules;

use std::collections::BTreeMap;
use std::time::Duration;

use crds::guard::Guarded;
use crds::{ImageMapping, ImageMappingSpec, ImageMappingStatus};
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher;
use nodeapi::v1::{ImageMapping as Message, SetImageMappingsRequest};
use service::backoff::Backoff;
use service::telemetry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::daemon::{Daemon, status_message};

/// The daemon keeps what it gets; this is for Secrets that changed, and for a daemon whose state
/// was lost.
const AGAIN: Duration = Duration::from_secs(300);

/// What the work takes.
pub(crate) struct Mapper {
    pub(crate) client: kube::Client,
    pub(crate) daemon: Daemon,
    pub(crate) node: String,
}

/// An object as the API server has it.
#[derive(Debug)]
struct Object {
    metadata: ObjectMeta,
    /// The rules, or why they cannot be read.
    spec: Result<ImageMappingSpec, String>,
    status: ImageMappingStatus,
}

/// The objects by name.
#[derive(Debug, Default)]
struct Known {
    objects: BTreeMap<String, Object>,
    /// A list that is being received.
    coming: BTreeMap<String, Object>,
    is_complete: bool,
}

impl Mapper {
    /// Works until `stop`.
    pub(crate) async fn run(
        mut self,
        events: impl Stream<Item = watcher::Result<watcher::Event<Guarded<ImageMapping>>>>,
        stop: CancellationToken,
    ) {
        let mut events = std::pin::pin!(events);
        let mut known = Known::default();
        let mut backoff = Backoff::default();
        let mut next = Instant::now();
        let mut was_away = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => match event {
                    None => return,
                    Some(Ok(event)) => {
                        was_away = false;
                        known.apply(event);
                    }
                    Some(Err(error)) if !was_away => {
                        was_away = true;
                        let error = telemetry::one_line(&error);
                        tracing::warn!(error, "image mappings not watched");
                    }
                    Some(Err(_)) => {}
                },
                () = tokio::time::sleep_until(next), if known.is_complete => {
                    let now = Instant::now();
                    next = match self.send(&known.objects).await {
                        Ok(()) => {
                            backoff.reset();
                            now + AGAIN
                        }
                        Err(error) => {
                            tracing::warn!(error, "image mappings not accepted by the daemon");
                            now + backoff.failed(now)
                        }
                    };
                    continue;
                }
            }
            // Events that have come together are one change.
            next = Instant::now();
        }
    }

    async fn send(&mut self, objects: &BTreeMap<String, Object>) -> Result<(), String> {
        let mut mappings = Vec::new();
        let mut refused = BTreeMap::new();
        for (name, object) in objects {
            let rules = match &object.spec {
                Ok(spec) => rules::file_text(&self.client, spec).await,
                Err(reason) => Err(reason.clone()),
            };
            let (rules, keep) = match rules {
                Ok(rules) => (rules, false),
                Err(reason) => {
                    refused.insert(name.clone(), reason);
                    (String::new(), true)
                }
            };
            let name = name.clone();
            mappings.push(Message { name, rules, keep });
        }
        let request = SetImageMappingsRequest { mappings };
        let response = self.daemon.set_image_mappings(request).await;
        let response = response.map_err(|status| status_message(&status))?;
        for result in response.into_inner().results {
            if !result.error.is_empty() {
                refused.entry(result.name).or_insert(result.error);
            }
        }
        for (name, object) in objects {
            let outcome = refused
                .get(name)
                .map_or(Ok(()), |reason| Err(reason.as_str()));
            report::report(&self.client, &self.node, object, outcome).await;
        }
        Ok(())
    }
}

impl From<Guarded<ImageMapping>> for Object {
    fn from(sent: Guarded<ImageMapping>) -> Self {
        match sent.0 {
            Ok(object) => Self {
                metadata: object.metadata,
                spec: Ok(object.spec),
                status: object.status.unwrap_or_default(),
            },
            Err(invalid) => Self {
                metadata: invalid.metadata,
                spec: Err(invalid.error),
                status: ImageMappingStatus::default(),
            },
        }
    }
}

impl Known {
    fn apply(&mut self, event: watcher::Event<Guarded<ImageMapping>>) {
        let entry = |sent: Guarded<ImageMapping>| {
            let object = Object::from(sent);
            Some((object.metadata.name.clone()?, object))
        };
        match event {
            watcher::Event::Init => self.coming.clear(),
            watcher::Event::InitApply(object) => self.coming.extend(entry(object)),
            watcher::Event::InitDone => {
                self.objects = std::mem::take(&mut self.coming);
                self.is_complete = true;
            }
            watcher::Event::Apply(object) => self.objects.extend(entry(object)),
            watcher::Event::Delete(object) => {
                if let Some((name, _)) = entry(object) {
                    self.objects.remove(&name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;

    fn sent(name: &str, spec: &Value) -> Guarded<ImageMapping> {
        let object = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "ImageMapping",
            "metadata": { "name": name }, "spec": spec,
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn an_object_that_cannot_be_read_stays_known_until_it_is_deleted() {
        let mut known = Known::default();
        known.apply(Event::Init);
        known.apply(Event::InitApply(sent("good", &json!({}))));
        known.apply(Event::InitApply(sent("bad", &json!({ "prefix": 7 }))));
        assert!(!known.is_complete);
        known.apply(Event::InitDone);
        assert!(known.is_complete);
        assert!(known.objects["good"].spec.is_ok());
        assert!(known.objects["bad"].spec.is_err());
        known.apply(Event::Delete(sent("bad", &json!({ "prefix": 7 }))));
        assert_eq!(known.objects.len(), 1);
        known.apply(Event::Init);
        known.apply(Event::InitDone);
        assert!(known.objects.is_empty());
    }
}
