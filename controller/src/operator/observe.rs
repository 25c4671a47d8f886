//! All objects that the status depends on.
//!
//! Invariant: our own parts are what their watches know (see [`Parts`]); only resources of others are
//! read in each pass, for nothing watches them.
//! Failure: each part carries its own error, so that one that is refused hides nothing of the
//! others.

use std::time::Duration;

use crds::{ComponentRef, VmletSpec};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt, discovery};
use serde::de::DeserializeOwned;
use service::telemetry;

use super::adapters::{Policy, Wanted};
use super::parts::Parts;

/// Longest time of one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What was read, or why not.
pub type Read<T> = Result<T, String>;

/// Everything that the status is made of.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The node side.
    pub daemon_set: Read<Option<DaemonSet>>,
    /// Its pods.
    pub pods: Read<Vec<Pod>>,
    /// The controller.
    pub deployment: Read<Option<Deployment>>,
    /// Our kinds.
    pub definitions: Read<Vec<CustomResourceDefinition>>,
    /// The admission policies.
    pub policies: Read<Vec<Policy>>,
    /// Nodes.
    pub nodes: Read<Vec<Node>>,
    /// What agents renew.
    pub leases: Read<Vec<Lease>>,
    /// Other custom resources, as JSON; `None` where there is none.
    pub others: Vec<(ComponentRef, Read<Option<serde_json::Value>>)>,
}

impl Observation {
    /// What watches know, and the rest as it is read.
    pub(super) async fn gather(
        parts: &mut Parts,
        client: &Client,
        spec: &VmletSpec,
        wanted: &[Wanted],
    ) -> Self {
        let watch = &spec.watch;
        let daemon_set = parts.daemon_sets.named(&watch.daemon_set);
        let pods = match &daemon_set {
            Ok(Some(set)) => parts.pods.all().map(|pods| selected(pods, set)),
            Ok(None) | Err(_) => Ok(Vec::new()),
        };
        Self {
            daemon_set,
            pods,
            deployment: parts.deployments.named(&watch.deployment),
            nodes: parts.nodes.all(),
            leases: parts.leases.all(),
            definitions: definitions(parts, wanted).await,
            policies: policies(parts, &watch.admission_policies).await,
            others: others(client, &spec.components).await,
        }
    }
}

fn selected(mut pods: Vec<Pod>, set: &DaemonSet) -> Vec<Pod> {
    let wanted = set.spec.selector.match_labels.clone().unwrap_or_default();
    let has = |pod: &Pod, key: &str, value: &String| pod.labels().get(key) == Some(value);
    pods.retain(|pod| wanted.iter().all(|(key, value)| has(pod, key, value)));
    pods
}

async fn definitions(parts: &mut Parts, wanted: &[Wanted]) -> Read<Vec<CustomResourceDefinition>> {
    let mut found = Vec::new();
    for wanted in wanted {
        found.extend(parts.definitions.named(&wanted.name).await?);
    }
    Ok(found)
}

async fn policies(parts: &mut Parts, names: &[String]) -> Read<Vec<Policy>> {
    let mut found = Vec::new();
    for name in names {
        found.push(Policy {
            name: name.clone(),
            policy: parts.policies.named(name).await?,
            binding: parts.bindings.named(name).await?,
        });
    }
    Ok(found)
}

async fn others(
    client: &Client,
    wanted: &[ComponentRef],
) -> Vec<(ComponentRef, Read<Option<serde_json::Value>>)> {
    let mut found = Vec::new();
    for wanted in wanted {
        found.push((wanted.clone(), other(client, wanted).await));
    }
    found
}

async fn other(client: &Client, wanted: &ComponentRef) -> Read<Option<serde_json::Value>> {
    let (group, version) = wanted
        .api_version
        .split_once('/')
        .unwrap_or(("", &wanted.api_version));
    let kind = GroupVersionKind::gvk(group, version, &wanted.kind);
    let resource = match within(discovery::pinned_kind(client, &kind)).await {
        Ok((resource, _)) => resource,
        // A kind that is not served has no object.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(kube::Error::Discovery(_)) => return Ok(None),
        Err(error) => return Err(message_of(&error)),
    };
    let api: Api<DynamicObject> = match &wanted.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let object = get(&api, &wanted.name).await?;
    Ok(object.and_then(|object| serde_json::to_value(object).ok()))
}

/// The object of this name.
pub(super) async fn get<K>(api: &Api<K>, name: &str) -> Read<Option<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    within(api.get_opt(name)).await.map_err(|e| message_of(&e))
}

/// An answer that does not come is as good as none.
pub(super) async fn within<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(kube::Error::Service(Box::new(elapsed))),
    }
}

fn message_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => telemetry::one_line(error).to_string(),
    }
}
