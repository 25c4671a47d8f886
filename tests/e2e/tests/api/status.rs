//! The real controller keeps the status of the installation, against a real API server.
//!
//! Invariant: what a cluster's own controllers would write (counts of a DaemonSet, a node's lease)
//! this test writes.
//! Failure: the object as it was last seen.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{Health, Vmlet, VmletStatus};
use e2e::{Control, Controller, eventually};
use http::Request;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Some looks of the controller.
const SOON: Duration = Duration::from_secs(240);
/// How often the agent of a node renews its lease.
const RENEWAL: Duration = Duration::from_secs(10);
const NAMESPACE: &str = "vmlet-system";
const VERSION: &str = env!("CARGO_PKG_VERSION");

async fn apply<K>(api: &Api<K>, name: &str, object: Value) -> Result<()>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + serde::Serialize,
{
    let mut object = object;
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    object["metadata"]["name"] = json!(name);
    let params = PatchParams::apply("e2e").force();
    api.patch(name, &params, &Patch::Apply(&object)).await?;
    if object.get("status").is_some() {
        api.patch_status(name, &params, &Patch::Apply(&object))
            .await?;
    }
    Ok(())
}

fn workload(extra: &Value) -> Value {
    let labels = json!({"app": "vmlet"});
    let mut spec = json!({
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"nodeSelector": {"vmlet.dev/node": "true"},
                "containers": [{"name": "c", "image": "i"}]},
        },
    });
    spec.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    spec
}

fn set(available: i32) -> Value {
    json!({
        "spec": workload(&json!({})),
        "status": {"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberReady": available,
            "updatedNumberScheduled": 1, "numberAvailable": available, "numberMisscheduled": 0,
            "observedGeneration": 1},
    })
}

/// Everything that a healthy installation has.
async fn install(client: &Client) -> Result<()> {
    let sets = Api::<DaemonSet>::namespaced(client.clone(), NAMESPACE);
    apply(&sets, "vmlet-node", set(1)).await?;
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let deployment = json!({
        "spec": workload(&json!({"replicas": 1})),
        "status": {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "availableReplicas": 1,
            "observedGeneration": 1, "conditions": [
            {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]},
    });
    apply(&deployments, "vmlet-controller", deployment).await?;
    let node = json!({
        "metadata": {"labels": {"vmlet.dev/node": "true"}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
    });
    apply(&Api::<Node>::all(client.clone()), "n1", node).await?;
    renew(client).await
}

/// What the agent of the node does, for as long as the test runs.
fn keep_renewing(client: Client) -> JoinSet<Result<()>> {
    let mut renewing = JoinSet::new();
    renewing.spawn(async move {
        loop {
            tokio::time::sleep(RENEWAL).await;
            eventually(SOON, "a renewal", || renew(&client)).await?;
        }
    });
    renewing
}

/// Says once that the node is well.
async fn renew(client: &Client) -> Result<()> {
    let facts = json!({
        "daemon": {"reachable": true, "version": VERSION},
        "proxy": {"reachable": true, "version": VERSION, "runtimeReady": true},
    });
    let now = humantime();
    let lease = json!({
        "metadata": {"labels": {"vmlet.dev/node-lease": "true"},
            "annotations": {"vmlet.dev/node-facts": facts.to_string()}},
        "spec": {"renewTime": now, "leaseDurationSeconds": 40, "holderIdentity": "n1"},
    });
    let leases = Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    apply(&leases, "vmlet-node-n1", lease).await
}

/// Now, as Kubernetes writes it.
fn humantime() -> Value {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    json!(MicroTime(jiff::Timestamp::now()))
}

/// Waits until a condition has a status and a reason.
async fn await_condition(api: &Api<Vmlet>, name: &str, wanted: [&str; 3]) -> Result<VmletStatus> {
    eventually(SOON, &format!("{name} {wanted:?}"), || async {
        let status = api.get(name).await?.status.unwrap_or_default();
        let is = |c: &Condition| [c.type_.as_str(), &c.status, &c.reason] == wanted;
        ensure!(status.conditions.iter().any(is), "{status:#?}");
        Ok(status)
    })
    .await
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_status_of_the_installation_follows_its_parts() -> Result<()> {
    let control = Control::up().await?;
    control.namespace(NAMESPACE).await?;
    let client = control.client()?;
    let api = Api::<Vmlet>::all(client.clone());
    // It has the lease to itself.
    let flags = ["--lease-enabled", "false"];
    let controller = control.controller("controller", &flags).await?;

    // Nothing is installed: the part that is visited last gives the reason, and every part has its
    // say.
    let object = |components: Value| json!({"spec": {"watch": {"admissionPolicies": []}, "components": components}});
    apply(&api, "default", object(json!([]))).await?;
    let wanted = ["Available", "False", "RuntimeConditions"];
    let status = await_condition(&api, "default", wanted).await?;
    ensure!(status.conditions.len() == 5, "{status:#?}");
    ensure!(status.health == Some(Health::Error), "{status:#?}");
    let message = &status.conditions.iter().find(|c| c.type_ == "Available");
    let message = &message.unwrap().message;
    ensure!(
        message.contains("Controller: its Deployment does not exist"),
        "{message}"
    );

    // All parts are there.
    install(&client).await?;
    let _renewing = keep_renewing(client.clone());
    let available = ["Available", "True", "ReconcileCompleted"];
    await_condition(&api, "default", available).await?;
    // The parts were made one after the other, and between any two of them the controller may have
    // looked.
    let status = eventually(SOON, "a healthy installation", || async {
        let status = api.get("default").await?.status.unwrap_or_default();
        ensure!(status.health == Some(Health::Healthy), "{status:#?}");
        let nodes = status.nodes.clone().unwrap_or_default();
        ensure!((nodes.targeted, nodes.ready) == (1, 1), "{nodes:?}");
        Ok(status)
    })
    .await?;
    let is_available = |c: &Condition| [c.type_.as_str(), &c.status, &c.reason] == available;
    ensure!(status.conditions.iter().any(is_available), "{status:#?}");
    ensure!(status.versions[0].version == VERSION, "{status:#?}");
    let kinds: Vec<_> = status
        .related_objects
        .iter()
        .map(|o| o.kind.as_str())
        .collect();
    ensure!(
        kinds.starts_with(&["DaemonSet", "Deployment", "CustomResourceDefinition"]),
        "{kinds:?}"
    );

    await_event(&client, "Ready").await?;

    // What changes nothing of the installation is checked, and nothing is read or written.
    let sets = Api::<DaemonSet>::namespaced(client.clone(), NAMESPACE);
    let before = api.get("default").await?.resource_version();
    let reported = events(&client).await?.len();
    let read = reads(&client).await?;
    trigger_passes(&controller, &sets, 3).await?;
    ensure!(reads(&client).await? == read, "a pass read: {read:#?}");
    ensure!(
        events(&client).await?.len() == reported,
        "the same was reported again"
    );
    ensure!(
        api.get("default").await?.resource_version() == before,
        "it was written"
    );

    // A part fails: at once for those who look, and for metrics.
    apply(&sets, "vmlet-node", set(0)).await?;
    await_condition(
        &api,
        "default",
        ["Available", "False", "RuntimeNotAvailable"],
    )
    .await?;
    // The number follows the object, as the object follows the cluster.
    eventually(SOON, "the metric", || async {
        let metrics = controller.page("/metrics").await?;
        ensure!(
            metrics.contains("vmlet_system_health_status 2"),
            "{metrics}"
        );
        Ok(())
    })
    .await?;
    let reported = await_event(&client, "NotAvailable").await?;
    let words = reported.note.clone().unwrap_or_default();
    ensure!(words.contains("Runtime is not available"), "{reported:#?}");
    ensure!(
        reported.type_.as_deref() == Some("Warning"),
        "{reported:#?}"
    );
    apply(&sets, "vmlet-node", set(1)).await?;

    // A resource of another product counts when it is listed.
    let other = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": NAMESPACE, "name": "absent"}]);
    apply(&api, "default", object(other)).await?;
    await_condition(
        &api,
        "default",
        ["Available", "False", "DeploymentConditions"],
    )
    .await?;
    apply(&api, "default", object(json!([]))).await?;

    // A version that is not rolled out everywhere: the upgrade is shown, and ends by itself.
    let patch = json!({"status": {"versions": [{"name": "operator", "version": "0.0.1"}]}});
    api.patch_status("default", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    eventually(SOON, "the upgrade ends", || async {
        let status = api.get("default").await?.status.unwrap_or_default();
        ensure!(status.versions[0].version == VERSION, "{status:#?}");
        Ok(())
    })
    .await?;
    // No status write waits for the write of its event.
    eventually(SOON, "event Upgraded", || async {
        let events = events(&client).await?;
        let upgraded = |event: &Event| event.reason.as_deref() == Some("Upgraded");
        ensure!(events.iter().any(upgraded), "{events:#?}");
        Ok(())
    })
    .await?;

    ensure!(controller.stop().await?.success());
    control.down()
}

/// The events of the installation so far, oldest first.
async fn events(client: &Client) -> Result<Vec<Event>> {
    let api = Api::<Event>::namespaced(client.clone(), "default");
    let mut events = api.list(&ListParams::default()).await?.items;
    events.retain(|event| {
        let regarding = event.regarding.as_ref();
        regarding.is_some_and(|object| object.kind.as_deref() == Some("Vmlet"))
    });
    events.sort_by_key(|event| event.event_time.clone().map(|time| time.0));
    Ok(events)
}

/// Waits until the newest event is this one, of an installation that began with `Initializing`.
async fn await_event(client: &Client, wanted: &str) -> Result<Event> {
    eventually(SOON, &format!("event {wanted}"), || async {
        let events = events(client).await?;
        let reason = |event: &Event| event.reason.clone().unwrap_or_default();
        let reported: Vec<_> = events.iter().map(reason).collect();
        let begun = reported
            .iter()
            .filter(|reported| *reported == "Initializing")
            .count();
        ensure!(begun == 1 && reported[0] == "Initializing", "{events:#?}");
        let last = events.last().cloned();
        last.filter(|last| reason(last) == wanted)
            .with_context(|| format!("{reported:?}"))
    })
    .await
}

/// Wakes the controller by a note on a part that says nothing of it, and waits for its look, so
/// many times.
async fn trigger_passes(
    controller: &Controller,
    sets: &Api<DaemonSet>,
    times: usize,
) -> Result<()> {
    for time in 0..times {
        let before = looks(controller);
        let note = json!({"metadata": {"annotations": {"example.com/note": time.to_string()}}});
        sets.patch("vmlet-node", &PatchParams::default(), &Patch::Merge(&note))
            .await?;
        eventually(SOON, "a look", || async {
            let now = looks(controller);
            ensure!(now > before, "{now} looks");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// How often what the status is made of was read from the API server, by whomever: watches are none
/// of these.
async fn reads(client: &Client) -> Result<BTreeMap<String, u64>> {
    const PARTS: [&str; 8] = [
        "vmlets",
        "daemonsets",
        "deployments",
        "pods",
        "nodes",
        "customresourcedefinitions",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ];
    let metrics = client.request_text(Request::get("/metrics").body(Vec::new())?);
    let metrics = metrics.await?;
    let mut reads = BTreeMap::new();
    for line in metrics.lines() {
        let Some(labels) = line.strip_prefix("apiserver_request_total{") else {
            continue;
        };
        let is = |key: &str, value: &str| labels.contains(&format!("{key}=\"{value}\""));
        let part = PARTS.iter().find(|part| is("resource", part));
        let verb = ["GET", "LIST"].into_iter().find(|verb| is("verb", verb));
        if let Some(part) = part
            && let Some(verb) = verb
        {
            let count = line.rsplit(' ').next().unwrap_or_default();
            *reads.entry(format!("{verb} {part}")).or_default() += count.parse::<u64>()?;
        }
    }
    let definitions = reads.get("GET customresourcedefinitions");
    ensure!(definitions.is_some(), "no reads are counted: {reads:#?}");
    Ok(reads)
}

/// How often the controller has looked at the installation.
fn looks(controller: &Controller) -> usize {
    let log = controller.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .filter(|line| line["message"] == "installation status computed")
        .count()
}
