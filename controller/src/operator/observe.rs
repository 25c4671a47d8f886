//! Reads all objects that the status depends on.
//!
//! Invariant: one pass reads each object once; nothing is kept from one pass to the next. Lists are
//! complete, and come from the memory of the API server, not from its database: the watches that wake
//! a pass come from there, too.
//! Failure: each read carries its own error, so that one that is refused hides nothing of the
//! others.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::guard::Guarded;
use crds::{ComponentRef, VmletSpec};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Client, discovery};
use serde::de::DeserializeOwned;
use service::telemetry;

use super::adapters::{Policy, Wanted};

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
    /// Reads it all.
    pub async fn read(client: &Client, spec: &VmletSpec, wanted: &[Wanted]) -> Self {
        let watch = &spec.watch;
        let namespaced = &watch.namespace;
        let sets = Api::<DaemonSet>::namespaced(client.clone(), namespaced);
        let daemon_set = get(&sets, &watch.daemon_set).await;
        let pods = match &daemon_set {
            Ok(Some(set)) => {
                let labels = set.spec.selector.match_labels.clone();
                let api = Api::namespaced(client.clone(), namespaced);
                list(&api, &selector(&labels.unwrap_or_default())).await
            }
            _ => Ok(Vec::new()),
        };
        let deployments = Api::<Deployment>::namespaced(client.clone(), namespaced);
        let leases = Api::<Guarded<Lease>>::namespaced(client.clone(), namespaced);
        let label = format!("{}=true", crds::names::NODE_LEASE_LABEL);
        Self {
            daemon_set,
            pods,
            deployment: get(&deployments, &watch.deployment).await,
            definitions: definitions(client, wanted).await,
            policies: policies(client, &watch.admission_policies).await,
            nodes: list(&Api::all(client.clone()), "").await,
            leases: list(&leases, &label).await,
            others: others(client, &spec.components).await,
        }
    }
}

async fn definitions(client: &Client, wanted: &[Wanted]) -> Read<Vec<CustomResourceDefinition>> {
    let api = Api::all(client.clone());
    let mut found = Vec::new();
    for wanted in wanted {
        found.extend(get(&api, &wanted.name).await?);
    }
    Ok(found)
}

async fn policies(client: &Client, names: &[String]) -> Read<Vec<Policy>> {
    let policies = Api::<ValidatingAdmissionPolicy>::all(client.clone());
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(client.clone());
    let mut found = Vec::new();
    for name in names {
        found.push(Policy {
            name: name.clone(),
            policy: get(&policies, name).await?,
            binding: get(&bindings, name).await?,
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

async fn get<K>(api: &Api<K>, name: &str) -> Read<Option<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    within(api.get_opt(name)).await.map_err(|e| message_of(&e))
}

/// Without objects that cannot be read: one must not hide the others.
async fn list<K>(api: &Api<Guarded<K>>, labels: &str) -> Read<Vec<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let which = ListParams::default().labels(labels).match_any();
    let found = within(api.list(&which)).await.map_err(|e| message_of(&e))?;
    Ok(found
        .items
        .into_iter()
        .filter_map(|one| one.0.ok())
        .collect())
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

fn selector(labels: &BTreeMap<String, String>) -> String {
    let pairs = labels.iter().map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}
