//! Reads and writes the guest facts of a pod.
//!
//! Invariant: one apply writes annotation and conditions together; a condition's time changes only
//! with its status. The uid in each write keeps it from another pod of the same name.
//! Failure: [`Wrote::Failed`] for what may go better later; a pod that no longer exists is an
//! answer, not a failure.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::guest_facts::GuestFacts;
use crds::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use service::telemetry;

use super::machine::{Condition, conditions};
use super::pause;
use crate::event::{self, About, Severity};
use crate::tasks::FIELD_MANAGER;

/// Longest wait for the API server in one call.
const API: Duration = Duration::from_secs(15);

/// Which pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Identity {
    /// Events about what the pod requests and its guest does not get.
    pub(super) fn not_given(&self) -> About<'_> {
        About {
            namespace: &self.namespace,
            object: event::pod(&self.namespace, &self.name, &self.uid),
            action: "CreateContainer",
            reason: "Unsupported",
            severity: Severity::Warning,
        }
    }
}

/// What a pod reports by now.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Published {
    /// The annotation; none when there is none that can be read.
    pub(super) facts: Option<GuestFacts>,
    /// Status and time of each condition of ours.
    pub(super) since: BTreeMap<String, (String, Option<Time>)>,
}

/// What a write came to.
#[derive(Debug)]
pub(super) enum Wrote {
    /// The pod reports this now.
    Written(Published),
    /// The pod has this value already.
    Unchanged(Published),
    /// There is no such pod any more.
    Vanished,
    /// The next attempt may succeed.
    Failed(String),
}

/// Makes the pod say `facts`. What it says is read when `published` is none. A pause of a guest
/// whose disk failed, and its end, become events first.
pub(super) async fn publish(
    client: kube::Client,
    node: &str,
    pod: &Identity,
    facts: &GuestFacts,
    published: Option<Published>,
    now: Timestamp,
) -> Wrote {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let published = match published {
        Some(published) => published,
        None => match call(api.get(&pod.name)).await {
            Ok(found) if found.metadata.uid.as_deref() == Some(&*pod.uid) => {
                Published::from_pod(&found)
            }
            Ok(_) => return Wrote::Vanished,
            Err(e) => return e,
        },
    };
    let wanted = conditions(facts);
    if published.facts.as_ref() == Some(facts) && published.has(&wanted) {
        return Wrote::Unchanged(published);
    }
    if let Some(news) = pause::news(&published, facts) {
        news.report(client, node, pod).await;
    }
    let patch = body(pod, facts, &wanted, &published, now);
    let params = PatchParams::apply(FIELD_MANAGER).force();
    faultpoint::point("agent.facts.write");
    match call(api.patch_status(&pod.name, &params, &Patch::Apply(&patch))).await {
        // Another writer that changes the annotation must not cause a write for each of its writes.
        Ok(written) => Wrote::Written(Published {
            facts: Some(facts.clone()),
            ..Published::from_pod(&written)
        }),
        Err(e) => e,
    }
}

async fn call<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, Wrote> {
    match tokio::time::timeout(API, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        // 409: another pod has its name, since nothing else is a condition of these writes.
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
            Err(Wrote::Vanished)
        }
        Ok(Err(e)) => Err(Wrote::Failed(telemetry::one_line(&e))),
        Err(_) => {
            let late = "the API server did not answer in time";
            Err(Wrote::Failed(late.to_owned()))
        }
    }
}

fn body(
    pod: &Identity,
    facts: &GuestFacts,
    wanted: &[Condition<'_>],
    published: &Published,
    now: Timestamp,
) -> Value {
    let conditions: Vec<_> = wanted
        .iter()
        .map(|condition| {
            let since = published.since.get(condition.kind);
            let since = since.filter(|(status, _)| status == condition.status);
            let since = since.and_then(|(_, since)| since.clone());
            let mut written = json!({
                "type": condition.kind,
                "status": condition.status,
                "reason": condition.reason,
                "lastTransitionTime": since.unwrap_or(Time(now)),
            });
            if !condition.message.is_empty() {
                written["message"] = json!(condition.message);
            }
            written
        })
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "uid": pod.uid,
            "annotations": { names::GUEST_FACTS: facts.to_json() },
        },
        "status": { "conditions": conditions },
    })
}

impl Published {
    fn from_pod(pod: &Pod) -> Self {
        let annotations = pod.metadata.annotations.as_ref();
        let facts = annotations.and_then(|all| all.get(names::GUEST_FACTS));
        let facts = facts.and_then(|text| GuestFacts::from_json(text).ok());
        let conditions = pod
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten());
        let ours = conditions.filter(|c| c.type_.starts_with(names::PREFIX));
        let since = ours.map(|c| {
            let published = (c.status.clone(), c.last_transition_time.clone());
            (c.type_.clone(), published)
        });
        Self {
            facts,
            since: since.collect(),
        }
    }

    fn has(&self, wanted: &[Condition<'_>]) -> bool {
        wanted.iter().all(|condition| {
            let published = self.since.get(condition.kind);
            published.is_some_and(|(status, _)| status == condition.status)
        })
    }
}

#[cfg(test)]
mod tests {
    use crds::guest_facts::Power;

    use super::*;

    #[test]
    fn the_time_of_a_condition_changes_only_with_its_status() {
        let pod = Identity {
            uid: "u".to_owned(),
            namespace: "ns".to_owned(),
            name: "vm".to_owned(),
        };
        let facts = GuestFacts {
            power: Power::On,
            ..GuestFacts::default()
        };
        let first: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let later: Timestamp = "2026-01-02T03:05:00Z".parse().unwrap();
        let written = body(
            &pod,
            &facts,
            &conditions(&facts),
            &Published::default(),
            first,
        );
        let written: Pod = serde_json::from_value(written).unwrap();
        let published = Published::from_pod(&written);
        assert_eq!(published.facts.as_ref(), Some(&facts));
        assert!(published.has(&conditions(&facts)));

        let paused = GuestFacts {
            power: Power::Paused,
            ..facts
        };
        assert!(!published.has(&conditions(&paused)));
        let written = body(&pod, &paused, &conditions(&paused), &published, later);
        let times: Vec<_> = (0..3)
            .map(|i| written["status"]["conditions"][i]["lastTransitionTime"].clone())
            .collect();
        let first = "2026-01-02T03:04:05Z";
        let later = "2026-01-02T03:05:00Z";
        assert_eq!(times, [later, first, first]);
    }
}
