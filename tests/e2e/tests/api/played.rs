//! A node, its agent and its scheduler, as far as a test plays them.
//!
//! Invariant: the agent's lease is written once, and no other agent renews: no agent counts as lost then. What
//! needs an agent that lives needs [`renewals`], too.
//! Failure: what kubectl printed.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use crds::names::{NODE_FACTS, NODE_LEASE_LABEL};
use e2e::machines::{class, image};
use e2e::{Cluster, Control};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::{Value, json};

/// Where the leases of agents are.
pub(crate) const SYSTEM: &str = "vmlet-system";

/// How often an agent renews its lease.
const RENEWAL: Duration = Duration::from_secs(10);

/// What machines need beside a node: a class, an image, the RuntimeClass and the namespace of Vmlet.
pub(crate) async fn installed(control: &Control) -> Result<&Cluster> {
    let cluster = control.cluster();
    cluster.apply(&class("tiny", "64Mi"))?;
    cluster.apply(&image("registry.example/guest:1"))?;
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/runtimeclass.yaml");
    cluster.kubectl(&["apply", "-f", &runtime.to_string_lossy()])?;
    control.namespace(SYSTEM).await?;
    Ok(cluster)
}

/// A node that is ready.
pub(crate) fn ready_node(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } }))?;
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    let ready = ready.to_string();
    let patch = [
        "patch",
        "node",
        name,
        "--subresource=status",
        "--type=merge",
    ];
    cluster
        .kubectl(&[&patch[..], &["-p", &ready]].concat())
        .map(drop)
}

/// A node that is ready, and the lease of its agent, whose daemon runs these kinds of task.
pub(crate) fn node(cluster: &Cluster, name: &str, kinds: &[&str]) -> Result<()> {
    ready_node(cluster, name)?;
    let facts = json!({ "daemon": { "reachable": true, "taskKinds": kinds } });
    cluster.apply(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": format!("vmlet-node-{name}"), "namespace": SYSTEM,
            "labels": { NODE_LEASE_LABEL: "true" },
            "annotations": { NODE_FACTS: facts.to_string() },
        },
        "spec": { "holderIdentity": name, "renewTime": "2026-01-01T00:00:00.000000Z" },
    }))?;
    Ok(())
}

/// The agent renews its lease, for as long as this is polled.
pub(crate) async fn renewals(cluster: &Cluster, node: &str) -> Result<()> {
    let lease = format!("vmlet-node-{node}");
    let mut due = tokio::time::interval(RENEWAL);
    loop {
        due.tick().await;
        let now = MicroTime(Timestamp::now());
        let renewed = json!({ "spec": { "renewTime": now } }).to_string();
        let patch = ["-n", SYSTEM, "patch", "lease", &lease, "--type=merge", "-p"];
        cluster.kubectl(&[&patch[..], &[&renewed]].concat())?;
    }
}

/// The scheduler places a pod.
pub(crate) fn bind(cluster: &Cluster, pod: &str, node: &str) -> Result<()> {
    let file = cluster.stack().dir().join("binding.json");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    std::fs::write(&file, binding.to_string())?;
    let path = format!("/api/v1/namespaces/default/pods/{pod}/binding");
    let file = file.to_str().context("a path in UTF-8")?;
    cluster
        .kubectl(&["create", "--raw", &path, "-f", file])
        .map(drop)
}

/// The agent reports the state of a task.
pub(crate) fn report(cluster: &Cluster, namespace: &str, task: &str, status: &Value) -> Result<()> {
    let change = json!({ "status": status }).to_string();
    let arguments = [
        "-n",
        namespace,
        "patch",
        "vmtask",
        task,
        "--subresource=status",
        "--type=merge",
    ];
    cluster
        .kubectl(&[&arguments[..], &["-p", &change]].concat())
        .map(drop)
}
