//! Rows X: how a machine is deleted.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use http::Method;
use serde_json::{Value, json};

use super::bench::*;
use crate::flow::Flow;
use crate::reconcile::vm::reconcile;

mod left_objects;

const SKIP: &str = "vmlet.dev.protected/skip-delete-platform-resource";

async fn deleted(bench: &mut Bench, changes: Value) {
    let mut all = json!({ "metadata": { "deletionTimestamp": "2027-01-15T08:00:00Z" } });
    json_patch::merge(&mut all, &changes);
    bench.edit(VMS, "vm", all);
    bench.writes();
    bench.events();
}

/// The same, and its dependents are to be left.
async fn left_behind(bench: &mut Bench) {
    deleted(
        bench,
        json!({ "metadata": { "annotations": { SKIP: "" } } }),
    )
    .await;
}

fn has_series(bench: &Bench) -> bool {
    let text = crate::metrics::Metrics::with_stores(&bench.ctx.stores).text();
    text.contains("vm_name=\"vm\"")
}

fn is_there(bench: &Bench) -> bool {
    bench.try_get(VMS, "vm").is_some()
}

#[tokio::test]
async fn x1a_a_paused_machine_keeps_everything() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    deleted(
        &mut bench,
        json!({ "metadata": { "annotations": { "vmlet.dev/paused": "" } } }),
    )
    .await;
    assert_eq!(bench.pass().await.unwrap(), Flow::Continue);
    assert_eq!(bench.writes(), Vec::<String>::new());
    assert_eq!(bench.events(), Vec::<String>::new());
    assert!(is_there(&bench) && bench.has_pod());
}

#[tokio::test]
async fn x1b_one_of_two_checks_is_enough_to_keep_it() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let checks = json!({ "delete.check.vmlet.dev/a": "", "delete.check.vmlet.dev/b": "" });
    deleted(&mut bench, json!({ "metadata": { "annotations": checks } })).await;
    let one = json!({ "metadata": { "annotations": { "delete.check.vmlet.dev/a": null } } });
    bench.edit(VMS, "vm", one);
    assert_eq!(bench.pass().await.unwrap(), Flow::Continue);
    assert_eq!(bench.writes(), Vec::<String>::new());
    let other = json!({ "metadata": { "annotations": { "delete.check.vmlet.dev/b": null } } });
    bench.edit(VMS, "vm", other);
    bench.pass().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn x2_without_our_finalizer_nothing_is_done() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    assert!(has_series(&bench));
    deleted(
        &mut bench,
        json!({ "metadata": { "finalizers": ["other/one"] } }),
    )
    .await;
    assert_eq!(bench.pass().await.unwrap(), Flow::Continue);
    assert_eq!(bench.writes(), Vec::<String>::new());
    assert_eq!(bench.events(), Vec::<String>::new());
    bench.remove(VMS, "vm");
    assert!(!has_series(&bench));
}

#[tokio::test]
async fn x4a_a_disk_that_is_being_made_is_called_off_first() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    bench.task_ends("Provision", "Running");
    deleted(&mut bench, json!({})).await;
    assert!(failure(&bench.pass().await).contains("is being made"));
    assert_eq!(bench.task("Provision")["spec"]["cancel"], true);
    assert!(is_there(&bench));
    bench.task_ends("Provision", "Cancelled");
    bench.settle().await.ok();
    bench.task_ends("DeleteDisk", "Success");
    bench.settle().await.ok();
    assert!(!is_there(&bench));
}

#[tokio::test]
async fn x4b_a_machine_without_a_disk_goes_at_once() {
    let mut bench = Bench::new();
    bench.machine(json!({ "spec": { "className": "none" } }));
    bench.settle().await.ok();
    deleted(&mut bench, json!({})).await;
    bench.passes().await;
    assert!(!is_there(&bench));
    assert_eq!(bench.events(), ["DeleteSuccess"]);
}

/// Nothing of the machine is there before its node is on record.
#[tokio::test]
async fn a_machine_whose_placeholder_is_on_a_silent_node_goes_at_once() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.node("n1", false);
    let placeholder = bench.placeholder("vm").unwrap();
    deleted(&mut bench, json!({})).await;
    bench.settle().await.ok();
    assert!(!is_there(&bench));
    assert!(bench.tasks("DeleteDisk").is_empty());
    let name = placeholder["metadata"]["name"].as_str().unwrap();
    let left = bench.try_get(PODS, name);
    assert!(left.is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null()));
}

#[tokio::test]
async fn x4c_a_silent_node_is_waited_for() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.node("n1", false);
    deleted(&mut bench, json!({})).await;
    assert!(is_wait(&bench.pass().await));
    assert!(is_there(&bench) && bench.has_pod());
    assert!(bench.tasks("DeleteDisk").is_empty());
    bench.node("n1", true);
    bench.pass().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn x4d_an_administrators_pause_keeps_it_and_shows() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let paused = json!({ "vmlet.dev.protected/admin-paused": "" });
    deleted(&mut bench, json!({ "metadata": { "annotations": paused } })).await;
    assert!(is_quiet(&bench.pass().await));
    assert_eq!(
        bench.get(VMS, "vm")["metadata"]["labels"]["vmlet.dev/paused"],
        "admin"
    );
    let says = bench.condition_text("VirtualMachineReconcileReady");
    assert_eq!(says, "False/VirtualMachineReconcilePaused");
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn x4e_a_running_promotion_is_called_off_then_the_machine_goes() {
    let mut bench = Bench::new();
    bench.off("Offline").await;
    let task = bench.task("Promote");
    assert!(task["spec"]["cancel"] != true);
    let name = task["metadata"]["name"].as_str().unwrap();
    bench.edit(TASKS, name, json!({ "status": { "state": "Running" } }));
    deleted(&mut bench, json!({})).await;
    bench.pass().await.ok();
    assert_eq!(bench.task("Promote")["spec"]["cancel"], true);
    bench.settle().await.ok();
    bench.task("DeleteDisk");
}

#[tokio::test]
async fn x4f_a_pod_that_cannot_be_deleted_is_tried_again() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    deleted(&mut bench, json!({})).await;
    bench.refuse(Method::DELETE, "pods/vm", 500, 1);
    assert!(failure(&bench.pass().await).contains("delete pod vm"));
    assert_eq!(bench.events(), ["DeleteFailure"]);
    assert_eq!(bench.condition_text("Failure"), "True/FailedDelete");
    bench.pass().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn x5_the_disk_goes_after_the_pod_and_then_everything_is_forgotten() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    assert!(has_series(&bench));
    deleted(&mut bench, json!({})).await;
    bench.settle().await.ok();
    assert!(
        bench.tasks("DeleteDisk").is_empty(),
        "while the domain runs"
    );
    let reported = bench.reported();
    let [started] = reported.as_slice() else {
        panic!("{reported:?}");
    };
    assert_eq!(started.reason, "DeleteStarted");
    for words in ["(300 s)", "kubectl vmlet delete vm --force"] {
        assert!(started.message.contains(words), "{}", started.message);
    }
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    assert!(is_there(&bench));
    let task = bench.task("DeleteDisk");
    assert_eq!(task["spec"]["nodeName"], "n1");
    assert_eq!(task["metadata"]["namespace"], "ns");
    assert!(task["spec"]["vmNamespace"].is_null());
    bench.task_ends("DeleteDisk", "Success");
    bench.settle().await.ok();
    assert!(!is_there(&bench));
    assert_eq!(bench.events(), ["DeleteSuccess"]);
    assert!(!has_series(&bench));
}

/// No agent is left that could end the task, and the disk was lost with the node.
#[tokio::test]
async fn a_machine_goes_although_the_node_that_was_making_its_disk_is_gone() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    bench.task_ends("Provision", "Running");
    bench.remove(NODES, "n1");
    deleted(&mut bench, json!({})).await;
    bench.settle().await.ok();
    assert!(!is_there(&bench));
}

/// The garbage collector is another program, and may be away.
#[tokio::test]
async fn the_tasks_of_a_machine_go_with_it_and_those_of_the_next_of_its_name_stay() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    deleted(&mut bench, json!({})).await;
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    bench.task_ends("DeleteDisk", "Success");
    bench.refuse(Method::DELETE, "virtualmachinetasks", 500, 1);
    bench.pass().await.ok();
    assert!(!is_there(&bench));
    assert!(bench.pass().await.is_err(), "the API server is away");
    bench.provisioning(json!({})).await;
    assert!(bench.tasks("DeleteDisk").is_empty());
    let made_anew = bench.task("Provision");
    assert_eq!(
        made_anew["metadata"]["ownerReferences"][0]["uid"],
        bench.get(VMS, "vm")["metadata"]["uid"]
    );
}

#[tokio::test]
async fn an_old_task_that_cannot_be_deleted_does_not_hold_up_the_next_machine() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    bench.remove(VMS, "vm");
    bench.refuse(Method::DELETE, "virtualmachinetasks", 500, 9);
    bench.machine(json!({}));
    assert!(bench.pass().await.is_err());
    let has_finalizer = bench.vm().metadata.finalizers.is_some();
    assert!(
        has_finalizer,
        "the pass ended before the machine was looked at"
    );
}

/// The owner of a machine that is deleted with `--cascade=orphan` may keep its tasks.
#[tokio::test]
async fn a_task_that_changed_since_the_store_saw_it_is_left_alone() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    bench.remove(VMS, "vm");
    bench.sync();
    {
        let mut server = bench.server.lock().unwrap();
        let mut tasks = server.objects.iter_mut().filter(|((c, _), _)| c == TASKS);
        let (_, task) = tasks.next().unwrap();
        task["metadata"]["resourceVersion"] = json!("999999");
    }
    bench.writes();
    bench.passes().await;
    assert_eq!(bench.writes(), Vec::<String>::new());
}

/// The watch of tasks is ahead of that of machines.
#[tokio::test]
async fn the_task_of_a_machine_that_the_store_does_not_know_yet_is_left_alone() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    let stale = bench.get(VMS, "vm");
    bench.remove(VMS, "vm");
    let place = (VMS.to_owned(), "vm".to_owned());
    bench.server.lock().unwrap().objects.insert(place, stale);
    bench.writes();
    assert_eq!(bench.pass().await.unwrap(), Flow::Continue);
    assert_eq!(bench.writes(), Vec::<String>::new());
    assert_eq!(bench.tasks("Provision").len(), 1);
}

/// A namespace that is being deleted takes no new object, and its tasks are deleted with it.
#[tokio::test]
async fn a_machine_goes_although_its_namespace_is_ending() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.server.lock().unwrap().ending.push("ns".to_owned());
    let provision = bench.task("Provision")["metadata"]["name"].clone();
    bench.remove(TASKS, provision.as_str().unwrap());
    deleted(&mut bench, json!({})).await;
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    let task = bench.task("DeleteDisk");
    assert_eq!(task["metadata"]["namespace"], "vmlet-system");
    assert_eq!(task["spec"]["vmNamespace"], "ns");
    assert!(task["metadata"]["ownerReferences"].is_null());
    bench.task_ends("DeleteDisk", "Success");
    bench.settle().await.ok();
    assert!(!is_there(&bench));
    assert!(
        bench.tasks("DeleteDisk").is_empty(),
        "nothing else deletes it"
    );
}

/// The status names the node before a task exists; the object of a task may be deleted by its
/// owner.
#[tokio::test]
async fn a_disk_is_removed_although_the_task_that_made_it_is_gone() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    bench.task_ends("Provision", "Success");
    let provision = bench.task("Provision")["metadata"]["name"].clone();
    bench.remove(TASKS, provision.as_str().unwrap());
    deleted(&mut bench, json!({})).await;
    bench.settle().await.ok();
    assert!(is_there(&bench));
    bench.task_ends("DeleteDisk", "Success");
    bench.settle().await.ok();
    assert!(!is_there(&bench));
}

/// The watch of pods is behind: a guest may start on the disk at any time.
#[tokio::test]
async fn no_disk_is_removed_under_a_pod_that_only_the_api_server_has() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let pod = bench.pod();
    bench.remove(PODS, "vm");
    deleted(&mut bench, json!({})).await;
    let place = (PODS.to_owned(), "vm".to_owned());
    bench.server.lock().unwrap().objects.insert(place, pod);
    let result = reconcile(&bench.ctx, &bench.key).await;
    assert!(is_conflict(&result), "{result:?}");
    assert!(bench.tasks("DeleteDisk").is_empty());
    bench.remove(PODS, "vm");
    bench.settle().await.ok();
    bench.task("DeleteDisk");
}
