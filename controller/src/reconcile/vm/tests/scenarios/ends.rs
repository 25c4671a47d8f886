//! Scenarios of machines that are deleted, orphaned, or whose instance ends.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

fn deletion(finalizers: Value) -> Value {
    json!({ "metadata": {
        "deletionTimestamp": "2027-01-15T08:00:00Z", "finalizers": finalizers,
    }})
}

#[tokio::test]
async fn s49_a_deleted_machine_stays_until_its_guest_is_gone() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.edit(
        VMS,
        "vm",
        deletion(json!(["foregroundDeletion", "vmlet.dev/virtualmachine"])),
    );
    bench.settle().await.ok();
    assert_eq!(shown(&bench), Word::Terminating);
    assert_eq!(bench.pod()["metadata"]["deletionGracePeriodSeconds"], 300);
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    bench.task_ends("DeleteDisk", "Success");
    bench.settle().await.ok();
    assert_eq!(
        bench.get(VMS, "vm")["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
}

#[tokio::test]
async fn s50_an_orphaned_machine_goes_at_once_and_its_guest_stays() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.edit(
        VMS,
        "vm",
        deletion(json!(["orphan", "vmlet.dev/virtualmachine"])),
    );
    bench.pass().await.ok();
    assert_eq!(
        bench.get(VMS, "vm")["metadata"]["finalizers"],
        json!(["orphan"])
    );
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    // Later its pod ends, and there is no machine to record the end in.
    bench.remove(VMS, "vm");
    bench.pass().await.ok();
    assert_eq!(
        bench.pod()["metadata"]["finalizers"],
        json!(["vmlet.dev/virtualmachine"])
    );
    bench.end("vm", 0, "GuestShutdown");
    bench.pass().await.ok();
    assert_eq!(bench.pod()["metadata"]["finalizers"], json!([]));
}

/// A machine that ran was deleted with orphans; another one of the same name is there.
async fn orphan_and_heir() -> (Bench, String) {
    let mut bench = Bench::new();
    let old = bench.running(json!({})).await;
    bench.remove(VMS, "vm");
    bench.edit(PODS, "vm", json!({ "metadata": { "ownerReferences": [] } }));
    bench.machine(json!({}));
    (bench, old)
}

#[tokio::test]
async fn s51_a_machine_of_the_same_name_takes_a_running_orphan_over() {
    let (mut bench, old) = orphan_and_heir().await;
    let pod = bench.pod()["metadata"]["uid"].clone();
    bench.settle().await.ok();
    assert_eq!(bench.pod()["metadata"]["uid"], pod);
    assert_eq!(shown(&bench), Word::Running);
    let status = bench.status();
    assert_eq!(status.disk_uid.as_deref(), Some(old.as_str()));
    assert_eq!(status.node_name.as_deref(), Some("n1"));
    assert!(bench.placeholder("vm").is_none());
    // Its disk stays its disk at the next start.
    bench.forward(700);
    bench.end("vm", 0, "GuestShutdown");
    bench.settle().await.ok();
    assert_eq!(
        bench.pod()["metadata"]["annotations"]["vmlet.dev/vm-disk"],
        json!(old)
    );
}

#[tokio::test]
async fn s52_a_pod_of_another_owner_is_not_changed() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    bench.put(PODS, json!({
        "metadata": { "name": "vm", "namespace": "ns", "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u", "controller": true,
        }]},
        "spec": { "containers": [] },
    }));
    let before = bench.pod();
    bench.sync();
    assert!(failure(&bench.pass().await).contains("ReplicaSet rs controls it"));
    assert_eq!(bench.condition_text("Failure"), "True/FailedCreate");
    assert_eq!(bench.pod(), before);
}

#[tokio::test]
async fn s53_a_machine_that_is_gone_by_now_adopts_nothing() {
    let (mut bench, _) = orphan_and_heir().await;
    bench.pass().await.ok();
    // The store still shows the machine alive.
    let place = (VMS.to_owned(), "vm".to_owned());
    bench
        .server
        .lock()
        .unwrap()
        .objects
        .get_mut(&place)
        .unwrap()["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:00:00Z");
    bench.writes();
    blind(&bench, 1).await;
    assert!(!bench.writes().contains(&"PATCH pods/vm".to_owned()));
}

#[tokio::test]
async fn s54_a_shorter_grace_cuts_a_longer_one_short() {
    let mut bench = Bench::new();
    bench
        .running(json!({ "spec": { "powerOffTimeout": "30s" } }))
        .await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    assert_eq!(bench.pod()["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(bench.tasks("PowerOff").is_empty());
    let uid = bench.pod()["metadata"]["uid"].clone();
    let stop = json!([{ "action": "Stop", "uid": uid, "data": { "gracePeriodSeconds": "0" } }]);
    bench.edit(
        VMS,
        "vm",
        json!({ "status": { "stateChangeRequests": stop } }),
    );
    bench.refuse(Method::POST, "virtualmachinetasks", 500, 1);
    bench.pass().await.unwrap_err();
    let given = &bench.pod()["metadata"]["deletionGracePeriodSeconds"];
    assert_eq!(*given, 30, "no pass would send the request again");
    bench.writes();
    bench.settle().await.ok();
    assert_eq!(bench.pod()["metadata"]["deletionGracePeriodSeconds"], 1);
    // kubelet does not read it again: the task goes to the node before the pod has the shorter
    // time.
    let task = bench.task("PowerOff")["spec"].clone();
    assert_eq!(task["nodeName"], "n1");
    assert_eq!(task["instanceUID"], uid);
    assert_eq!(task["timeoutSeconds"], 1);
    let writes = bench.writes();
    let of = |start: &str| writes.iter().position(|w| w.starts_with(start)).unwrap();
    assert!(of("POST virtualmachinetasks") < of("DELETE pods/vm"));
    // One that is never carried out is in no way of the next instance.
    bench.end("vm", 137, "GraceExceeded");
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
    assert_ne!(bench.pod()["metadata"]["uid"], uid);
}

/// The deletion failed after the task was made, and then the task did.
#[tokio::test]
async fn s54_a_shorter_grace_is_given_only_with_a_task_that_has_not_failed() {
    let mut bench = Bench::new();
    bench
        .running(json!({ "spec": { "powerOffTimeout": "30s" } }))
        .await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    let uid = bench.pod()["metadata"]["uid"].clone();
    let stop = json!([{ "action": "Stop", "uid": uid, "data": { "gracePeriodSeconds": "0" } }]);
    let stop = json!({ "status": { "stateChangeRequests": stop } });
    bench.edit(VMS, "vm", stop);
    bench.refuse(Method::DELETE, "pods/vm", 500, 1);
    failure(&bench.pass().await);
    let failed = bench.task("PowerOff")["metadata"]["uid"].clone();
    bench.task_ends("PowerOff", "Error");
    bench.forward(300);
    bench.pass().await.ok();
    let given = bench.pod()["metadata"]["deletionGracePeriodSeconds"].clone();
    assert_eq!(given, 30, "no later pass would make the task again");
    assert!(bench.tasks("PowerOff").is_empty());
    bench.settle().await.ok();
    assert_ne!(bench.task("PowerOff")["metadata"]["uid"], failed);
    let given = bench.pod()["metadata"]["deletionGracePeriodSeconds"].clone();
    assert_eq!(given, 1);
}

#[tokio::test]
async fn s55_an_end_while_the_controller_was_away_is_recorded_before_the_pod_goes() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.pass().await.ok();
    bench.end("vm", 137, "GraceExceeded");
    assert!(bench.has_pod(), "the finalizer keeps it");
    bench.refuse(Method::PATCH, "virtualmachines/vm/status", 500, 1);
    bench.pass().await.ok();
    assert!(bench.has_pod(), "as long as its end is not on record");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    let last = bench.status().instance.unwrap();
    assert_eq!(
        (last.exit_code, last.reason.as_deref()),
        (Some(137), Some("GraceExceeded"))
    );
}
