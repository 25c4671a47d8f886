//! What a creation finds missing: classes, images, Secrets and inline data.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

#[tokio::test]
async fn c4_all_that_is_missing_shows_in_one_pass() {
    let mut bench = Bench::new();
    bench.machine(json!({ "spec": { "className": "none", "imageName": "none" } }));
    bench.pass().await.ok();
    let text = failure(&bench.pass().await);
    assert!(
        text.contains("VirtualMachineClass none") && text.contains("image none"),
        "{text}"
    );
    assert_eq!(
        bench.condition_text("VirtualMachineClassReady"),
        "False/NotFound"
    );
    assert_eq!(
        bench.condition_text("VirtualMachineImageReady"),
        "False/NotFound"
    );
    assert_eq!(
        bench.condition_text("VirtualMachineStorageReady"),
        "True/Resolved"
    );
}

#[tokio::test]
async fn a_secret_that_is_missing_is_looked_at_again_by_time() {
    let mut bench = Bench::new();
    let user_data = json!({ "bootstrap": { "cloudInit": { "userData": { "name": "seed" } } } });
    bench.machine(json!({ "spec": user_data }));
    let mut last = None;
    for _ in 0..5 {
        last = bench.pass().await.ok();
    }
    // It is likely to be made at once, or not soon.
    assert_eq!(last, Some(Flow::RequeueAfter(Duration::from_secs(2))));
    for (missing, seconds) in [(60, 15), (600, 30)] {
        bench.forward(missing);
        let result = bench.pass().await;
        let due = Flow::RequeueAfter(Duration::from_secs(seconds));
        assert_eq!(result.ok(), Some(due), "{missing}");
    }
    let word = crds::vm::PrintableStatus::ErrorBootstrap;
    assert_eq!(bench.status().printable_status, Some(word));
    assert_eq!(
        bench.status().message.as_deref(),
        Some("secret seed does not exist")
    );
    assert_eq!(
        bench.condition_text("VirtualMachineBootstrapReady"),
        "False/NotFound"
    );
    bench.put(
        "api/v1/namespaces/ns/secrets",
        json!({ "metadata": { "name": "seed", "namespace": "ns" }, "data": { "user-data": "" } }),
    );
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineBootstrapReady"),
        "True/Resolved"
    );
}

#[tokio::test]
async fn a_secret_without_an_answer_file_stops_the_machine() {
    let mut bench = Bench::new();
    let sysprep = json!({ "bootstrap": { "sysprep": { "secretName": "answers" } } });
    bench.machine(json!({ "spec": sysprep }));
    let kind = "VirtualMachineBootstrapReady";
    let secrets = "api/v1/namespaces/ns/secrets";
    bench.put(
        secrets,
        json!({ "metadata": { "name": "answers", "namespace": "ns" }, "data": { "Unattend.XML": "" } }),
    );
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(kind), "False/RequiredKeyNotFound");
    let message = bench.condition(kind).unwrap().message;
    assert!(message.ends_with("; it has Unattend.XML"), "{message}");
    let edit = json!({ "data": { "autounattend.xml": "" } });
    bench.edit(secrets, "answers", edit);
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(kind), "True/Resolved");
}

#[tokio::test]
async fn inline_data_that_the_node_would_refuse_stop_the_machine_here() {
    for (data, message) in [
        (
            json!({ "inlineUserData": "#cloud-config\nchpasswd: [hush" }),
            "inlineUserData: line 2, column",
        ),
        (
            json!({ "inlineNetworkData": "- hush" }),
            "inlineNetworkData: a YAML map is needed",
        ),
        (
            json!({ "inlineUserData": "#!", "userData": { "name": "hush" } }),
            "userData and its inline form are both set",
        ),
    ] {
        let mut bench = Bench::new();
        bench.machine(json!({ "spec": { "bootstrap": { "cloudInit": data } } }));
        bench.settle().await.ok();
        let kind = "VirtualMachineBootstrapReady";
        assert_eq!(bench.condition_text(kind), "False/Invalid");
        let conditions = serde_json::to_value(&bench.vm().status.unwrap().conditions).unwrap();
        let all = conditions.as_array().unwrap().iter();
        let found: Vec<_> = all.filter(|c| c["type"] == kind).collect();
        let text = found[0]["message"].as_str().unwrap();
        assert!(text.contains(message) && !text.contains("hush"), "{text}");
    }
}
