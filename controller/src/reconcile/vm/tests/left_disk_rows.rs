//! Machines that are deleted while the node of their disk has no agent.
//!
//! Invariant: a disk is left on its node only on request, and only where no agent could delete it.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;

fn leave() -> Value {
    json!({ "metadata": { "annotations": { "vmlet.dev/leave-disk": "" } } })
}

fn deleted(bench: &mut Bench) {
    let at = json!({ "metadata": { "deletionTimestamp": "2027-01-15T08:00:00Z" } });
    bench.edit(VMS, "vm", at);
    bench.events();
}

fn is_there(bench: &Bench) -> bool {
    bench.try_get(VMS, "vm").is_some()
}

/// A machine that is off, its disk on `n1`, where another node has the only agent.
async fn off_without_agent() -> Bench {
    let mut bench = Bench::new();
    bench.node("n2", true);
    let off = json!({ "spec": { "runStrategy": "Halted" } });
    bench.created(off).await;
    bench.settle().await.ok();
    bench.agents(&["n2"]);
    bench
}

#[tokio::test]
async fn a_machine_says_how_to_delete_it_and_goes_without_its_disk_on_request() {
    let mut bench = off_without_agent().await;
    deleted(&mut bench);
    bench.settle().await.ok();
    bench.pass().await.ok();
    assert!(is_there(&bench));
    assert_eq!(bench.tasks("DeleteDisk").len(), 1);
    let failure = bench.condition("Failure").unwrap();
    assert_eq!(failure.reason, "AgentSilent");
    for words in [
        "kubectl label node n1 vmlet.dev/node=true",
        "kubectl -n ns annotate vm vm vmlet.dev/leave-disk=",
    ] {
        assert!(failure.message.contains(words), "{}", failure.message);
    }
    let labels = json!({ "metadata": { "labels": { "vmlet.dev/node": "true" } } });
    bench.edit(NODES, "n1", labels);
    bench.pass().await.ok();
    let message = bench.status().message.unwrap();
    assert!(
        message.contains("check the pod of vmlet-agent there"),
        "{message}"
    );

    bench.events();
    bench.edit(VMS, "vm", leave());
    bench.settle().await.ok();
    assert!(!is_there(&bench));
    assert_eq!(bench.events(), ["DiskLeft"]);
    bench.pass().await.ok();
    assert!(bench.tasks("DeleteDisk").is_empty(), "its machine is gone");
}

#[tokio::test]
async fn an_agent_deletes_the_disk_whatever_its_owner_requested() {
    let mut bench = off_without_agent().await;
    bench.agents(&["n1", "n2"]);
    bench.edit(VMS, "vm", leave());
    deleted(&mut bench);
    bench.settle().await.ok();
    assert!(is_there(&bench));
    bench.task_ends("DeleteDisk", "Success");
    bench.settle().await.ok();
    assert!(!is_there(&bench));
    assert_eq!(bench.events(), ["DeleteSuccess"]);
}

/// A controller that has just started knows of no agent.
#[tokio::test]
async fn no_disk_is_left_before_the_agents_are_known() {
    let mut bench = Bench::new();
    let off = json!({ "spec": { "runStrategy": "Halted" } });
    bench.created(off).await;
    bench.edit(VMS, "vm", leave());
    deleted(&mut bench);
    bench.settle().await.ok();
    assert!(is_there(&bench));
}

#[tokio::test]
async fn a_guest_that_may_run_keeps_its_machine() {
    let mut bench = Bench::new();
    bench.node("n2", true);
    bench.running(json!({})).await;
    bench.agents(&["n2"]);
    bench.node("n1", false);
    bench.edit(VMS, "vm", leave());
    deleted(&mut bench);
    assert!(is_wait(&bench.pass().await));
    assert!(is_there(&bench) && bench.has_pod());
    // The pod was removed by force, and the node does not report.
    bench.edit(PODS, "vm", json!({ "metadata": { "finalizers": null } }));
    bench.remove(PODS, "vm");
    bench.settle().await.ok();
    assert!(!is_there(&bench));
}

#[tokio::test]
async fn a_disk_that_is_being_made_can_be_left_too() {
    let mut bench = Bench::new();
    bench.node("n2", true);
    bench.provisioning(json!({})).await;
    bench.agents(&["n2"]);
    deleted(&mut bench);
    assert!(is_wait(&bench.pass().await));
    assert!(is_there(&bench));
    assert_eq!(bench.task("Provision")["spec"]["cancel"], true);
    let failure = bench.condition("Failure").unwrap();
    assert!(
        failure.message.contains("vmlet.dev/leave-disk="),
        "{}",
        failure.message
    );
    bench.edit(VMS, "vm", leave());
    bench.settle().await.ok();
    assert!(!is_there(&bench));
}
