//! Updates of a replica set: machines of an earlier template are replaced.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

#[tokio::test]
async fn an_update_replaces_one_machine_after_the_other() {
    let mut bench = ready_set(2, json!({ "updateStrategy": { "type": "RollingUpdate" } })).await;
    let before = bench.get(SETS, "web")["status"]["updateRevision"].clone();
    bench.edit_set(&json!({ "template": { "spec": { "imageName": "debian-13" } } }));
    bench.sync();
    bench.settled_set().await;
    let images = |bench: &Bench| {
        ["web-0", "web-1"].map(|name| bench.get(VMS, name)["spec"]["imageName"].clone())
    };
    assert_eq!(images(&bench), ["debian", "debian-13"]);
    assert_eq!(bench.numbers(), [2, 1, 1, 1]);
    let status = bench.get(SETS, "web")["status"].clone();
    assert_eq!(status["currentRevision"], before);
    assert_ne!(status["updateRevision"], before);
    bench.machine_is_ready("web-1", "True");
    bench.sync();
    bench.settled_set().await;
    assert_eq!(images(&bench), ["debian-13", "debian-13"]);
    let status = bench.get(SETS, "web")["status"].clone();
    assert_eq!(status["currentRevision"], status["updateRevision"]);
}

#[tokio::test]
async fn a_machine_that_the_set_did_not_make_is_not_replaced() {
    let mut bench = Bench::new();
    let labels = json!({ "metadata": { "labels": { "app": "web" } } });
    bench.machine_named("web-0", labels);
    let uid = bench.get(VMS, "web-0")["metadata"]["uid"].clone();
    bench.set(1, &json!({ "updateStrategy": { "type": "RollingUpdate" } }));
    bench.settled_set().await;
    bench.edit_set(&json!({ "template": { "spec": { "imageName": "debian-13" } } }));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.get(VMS, "web-0")["metadata"]["uid"], uid);
    assert_eq!(bench.numbers(), [1, 0, 0, 0]);
}

/// Another version of the controller computes another value for the same template.
#[tokio::test]
async fn a_template_that_was_not_edited_keeps_its_revision() {
    let mut bench = ready_set(2, json!({ "updateStrategy": { "type": "RollingUpdate" } })).await;
    let later = "0123456789abcdef";
    bench.edit(
        SETS,
        "web",
        json!({ "status": { "updateRevision": later, "templateHash": later } }),
    );
    let label = json!({ "metadata": { "labels": { "vmlet.dev/template-revision": later } } });
    for name in ["web-0", "web-1"] {
        bench.edit(VMS, name, label.clone());
    }
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.numbers(), [2, 2, 2, 2]);
    for replicas in [3, 2] {
        bench.edit_set(&json!({ "replicas": replicas }));
        bench.settled_set().await;
        assert_eq!(bench.get(SETS, "web")["status"]["updateRevision"], later);
        assert_eq!(bench.numbers(), [replicas, 2, 2, replicas]);
    }
    bench.edit_set(&json!({ "template": { "spec": { "imageName": "debian-13" } } }));
    bench.sync();
    bench.settled_set().await;
    assert_ne!(bench.get(SETS, "web")["status"]["updateRevision"], later);
    assert_eq!(bench.numbers(), [2, 1, 1, 1]);
}

#[tokio::test]
async fn a_machine_that_is_off_holds_up_no_update() {
    let mut bench = ready_set(2, json!({ "updateStrategy": { "type": "RollingUpdate" } })).await;
    bench.edit(VMS, "web-1", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.machine_is_ready("web-1", "False");
    bench.edit_set(
        &json!({ "template": { "spec": { "runStrategy": "Halted", "imageName": "debian-13" } } }),
    );
    bench.sync();
    bench.settled_set().await;
    let images = ["web-0", "web-1"].map(|name| bench.get(VMS, name)["spec"]["imageName"].clone());
    assert_eq!(images, ["debian-13", "debian-13"]);
}

#[tokio::test]
async fn without_rolling_update_a_new_template_counts_for_new_machines_only() {
    let mut bench = ready_set(2, json!({})).await;
    bench.edit_set(&json!({ "template": { "spec": { "imageName": "debian-13" } } }));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.get(VMS, "web-0")["spec"]["imageName"], "debian");
    assert_eq!(bench.numbers(), [2, 2, 2, 0]);
    gone(&mut bench, &["web-0"]);
    bench.settled_set().await;
    assert_eq!(bench.get(VMS, "web-0")["spec"]["imageName"], "debian-13");
}

#[tokio::test]
async fn a_machine_counts_as_available_after_its_time() {
    let mut bench = Bench::new();
    bench.set(1, &json!({ "minReadySeconds": 30 }));
    bench.settled_set().await;
    bench.machine_is_ready("web-0", "True");
    bench.sync();
    let wait = bench.set_settles().await;
    assert_eq!(bench.numbers(), [1, 1, 0, 1]);
    assert_eq!(seconds(&wait), Some(30));
    bench.forward(30);
    bench.settled_set().await;
    assert_eq!(bench.numbers(), [1, 1, 1, 1]);
}

#[tokio::test]
async fn the_time_of_a_machine_does_not_wait_for_a_failure_of_another() {
    let mut bench = ready_set(1, json!({ "minReadySeconds": 30 })).await;
    bench.refuse(Method::POST, "virtualmachines", 422, 2);
    bench.edit_set(&json!({ "replicas": 2 }));
    bench.sync();
    bench.set_pass().await.unwrap_err();
    assert_eq!(seconds(&bench.set_pass().await), Some(30));
}
