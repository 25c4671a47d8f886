//! Has the claim mounted that a backup is in, while it is fetched.
//!
//! Invariant: the controller makes the pod, with the rights of the namespace; the command requests it for a time, which ends
//! by itself if the command is killed, and is renewed while the backup is fetched. It is taken back afterwards.
//! Failure: the cluster's; a claim that no node mounts in time, with what the pod waits for.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::bail;
use crds::VirtualMachineBackup;
use crds::names::{BACKUP_MOUNTED_UNTIL, POD_ROLE_LABEL};
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::cluster::{Cluster, ClusterError};

/// Role of the pod.
const ROLE: &str = "backup-target";
/// How long the claim stays mounted for a command that is killed.
const MOUNTED: SignedDuration = SignedDuration::from_hours(2);
/// How often a command that runs renews its request: one renewal that fails ends nothing.
const RENEWAL: Duration = Duration::from_secs(60 * 60);
/// Time for the pod to run.
const RUNS_WITHIN: Duration = Duration::from_secs(300);
/// How often the pods are listed.
const LOOK: Duration = Duration::from_secs(2);

/// Requests the mount, and waits for it; returns the node that has it.
pub(super) async fn mount(cluster: &Cluster, name: &str, uid: &str) -> anyhow::Result<String> {
    renew(cluster, name).await?;
    eprintln!("backup {name} is in a claim: waiting for a pod that has it mounted");
    let begun = Instant::now();
    let mut looks = interval(LOOK);
    let mut waits = "the controller has made no pod".to_owned();
    while begun.elapsed() < RUNS_WITHIN {
        looks.tick().await;
        let Some(pod) = pod_of(cluster, name, uid).await? else {
            continue;
        };
        match node(&pod) {
            Ok(node) => return Ok(node),
            Err(why) => waits = why,
        }
    }
    unmount(cluster, name).await;
    bail!(
        "no node has the claim of backup {name} mounted after {} s: {waits}",
        RUNS_WITHIN.as_secs()
    )
}

/// Renews the request for as long as this runs, at once for the first time.
pub(super) async fn hold(cluster: &Cluster, name: &str) -> Infallible {
    let mut turns = interval(RENEWAL);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let _ = renew(cluster, name).await;
    }
}

/// Takes the request back. One that stays ends by itself.
pub(super) async fn unmount(cluster: &Cluster, name: &str) {
    let _ = request(cluster, name, &Value::Null).await;
}

async fn renew(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let until = Timestamp::now().saturating_add(MOUNTED)?;
    request(cluster, name, &json!(until.to_string())).await
}

async fn request(cluster: &Cluster, name: &str, until: &Value) -> anyhow::Result<()> {
    let change = json!({ "metadata": { "annotations": { BACKUP_MOUNTED_UNTIL: until } } });
    let api = cluster.api::<VirtualMachineBackup>();
    let about = |error| ClusterError::about(&cluster.namespace, name, error);
    let written = api
        .patch(name, &PatchParams::default(), &Patch::Merge(change))
        .await;
    written.map(drop).map_err(about)?;
    Ok(())
}

/// The pod that the controller has made for the backup.
async fn pod_of(cluster: &Cluster, name: &str, uid: &str) -> anyhow::Result<Option<Pod>> {
    let ours = ListParams::default().labels(&format!("{POD_ROLE_LABEL}={ROLE}"));
    let listed = cluster.api::<Pod>().list(&ours).await;
    let listed = listed.map_err(|error| ClusterError::about(&cluster.namespace, name, error))?;
    let mut all = listed.items.into_iter();
    Ok(all.find(|pod| {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        !is_leaving && owners.any(|owner| owner.uid == uid)
    }))
}

/// The node on which the pod runs; `Err`: what it waits for.
fn node(pod: &Pod) -> Result<String, String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let status = pod.status.clone().unwrap_or_default();
    let statuses = status.container_statuses.unwrap_or_default();
    let state: Option<&ContainerState> = statuses.first().and_then(|one| one.state.as_ref());
    let runs = state.is_some_and(|state| state.running.is_some());
    if let Some(node) = node.filter(|_| runs) {
        return Ok(node);
    }
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let why = waiting.and_then(|waiting| waiting.message.clone());
    let conditions = status.conditions.unwrap_or_default();
    let unscheduled = conditions
        .into_iter()
        .find(|one| one.type_ == "PodScheduled" && one.status == "False");
    let why = why.or_else(|| unscheduled.and_then(|one| one.message));
    let why = why.unwrap_or_else(|| format!("`kubectl describe pod {name}` says why"));
    Err(format!("pod {name} does not run: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: &Value, status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "p" }, "spec": { "nodeName": node, "containers": [] },
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_that_runs_says_its_node_and_another_one_what_it_waits_for() {
        let state = |state: Value| {
            json!({ "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
            }] })
        };
        let runs = state(json!({ "running": {} }));
        assert_eq!(node(&pod(&json!("n1"), &runs)), Ok("n1".to_owned()));
        let waiting = state(json!({ "waiting": { "reason": "R", "message": "read-only" } }));
        let unplaced = json!({ "conditions": [{
            "type": "PodScheduled", "status": "False", "message": "no such volume",
        }] });
        for (pod, words) in [
            (pod(&json!("n1"), &waiting), "read-only"),
            (pod(&Value::Null, &unplaced), "no such volume"),
            (pod(&Value::Null, &json!({})), "kubectl describe pod p"),
        ] {
            let why = node(&pod).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
