//! Scenarios of scale and faults. What they mean for guests is tested with real ones: 54 by
//! `stacks::kubelet_needs`, 60 by `clusters::thirty`, 63 by `clusters::lost_node`, 64 by
//! `clusters::restarts`.
//!
//! Invariant: one test for each scenario, named by it.
//! Failure: none of its own.

use super::*;

#[tokio::test]
async fn s61_a_controller_killed_in_a_restart_leaves_one_instance() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.forward(700);
    let uid = bench.pod()["metadata"]["uid"].clone();
    let restart = json!([{ "action": "Stop", "uid": uid }, { "action": "Start" }]);
    bench.edit(
        VMS,
        "vm",
        json!({ "status": { "stateChangeRequests": restart } }),
    );
    bench.pass().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
    // Another process: nothing in memory.
    bench.ctx.shared = crate::shared::Shared::default();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    bench.run("n1");
    bench.settle().await.ok();
    assert_ne!(bench.pod()["metadata"]["uid"], uid);
    assert!(bench.status().state_change_requests.is_empty());
    let writes = bench.writes();
    assert_eq!(
        writes.iter().filter(|w| *w == "POST pods/vm").count(),
        1,
        "{writes:?}"
    );
}

#[tokio::test]
async fn s62_a_watch_that_stops_during_a_restart_makes_no_second_instance() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.forward(700);
    bench.end("vm", 0, "GuestShutdown");
    blind(&bench, 5).await;
    bench.forward(120);
    blind(&bench, 5).await;
    bench.sync();
    bench.settle().await.ok();
    bench.settle().await.ok();
    assert!(bench.has_pod() && bench.pod()["status"].is_null());
    let writes = bench.writes();
    assert_eq!(
        writes.iter().filter(|w| *w == "POST pods/vm").count(),
        1,
        "{writes:?}"
    );
}

#[tokio::test]
async fn s63_a_lost_node_gives_no_second_instance_until_the_pod_is_gone() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.node("n1", false);
    let gone = json!({ "metadata": {
        "deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 30,
    }});
    bench.edit(PODS, "vm", gone);
    for _ in 0..5 {
        bench.forward(120);
        bench.pass().await.ok();
    }
    assert!(bench.has_pod());
    assert_eq!(
        bench.pod()["metadata"]["finalizers"],
        json!(["vmlet.dev/virtualmachine"])
    );
    assert_eq!(
        bench.condition_text("VirtualMachineLocationValid"),
        "False/NodeLost"
    );
}

#[tokio::test]
async fn s64_a_runtime_that_restarts_changes_nothing() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    // kubelet sees the node go and come while its containers run on.
    bench.node("n1", false);
    bench.settle().await.ok();
    bench.node("n1", true);
    bench.settle().await.ok();
    assert_eq!(shown(&bench), Word::Running);
    assert!(
        bench
            .writes()
            .iter()
            .all(|w| w.starts_with("PATCH virtualmachines"))
    );
}

#[tokio::test]
async fn s65_a_request_that_arrives_during_a_pass_is_neither_lost_nor_repeats_it() {
    let mut bench = Bench::new();
    bench
        .created(json!({ "spec": { "runStrategy": "Manual" } }))
        .await;
    let start = json!([{ "action": "Start" }]);
    // The store does not show the request yet; the pass has a status to write.
    let place = (VMS.to_owned(), "vm".to_owned());
    {
        let mut server = bench.server.lock().unwrap();
        let old = server.objects[&place].clone();
        let mut new = old.clone();
        json_patch::merge(
            &mut new,
            &json!({ "status": { "stateChangeRequests": start } }),
        );
        server.store(&place, &old, new);
    }
    blind(&bench, 1).await;
    assert_eq!(bench.status().state_change_requests.len(), 1);
    bench.sync();
    bench.settle().await.ok();
    assert!(bench.has_pod());
    bench.run("n1");
    bench.settle().await.ok();
    assert!(bench.status().state_change_requests.is_empty());
}

#[tokio::test]
async fn s60_five_hundred_machines_get_one_pod_each() {
    let mut config = crate::config::Config::default();
    config.machines.creates = 1000;
    config.machines.creates_per_node = 1000;
    let mut bench = Bench::with(config);
    for index in 0..500 {
        let vm = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
            "metadata": { "name": format!("vm{index}"), "namespace": "ns", "finalizers": ["vmlet.dev/virtualmachine"] },
            "spec": { "className": "small", "imageName": "debian", "runStrategy": "Always" },
            "status": {
                "nodeName": "n1",
                "conditions": [{
                    "type": "VirtualMachineCreated", "status": "True", "reason": "True", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        });
        bench.put(VMS, vm);
    }
    bench.sync();
    for _ in 0..3 {
        for index in 0..500 {
            bench.key.name = format!("vm{index}");
            reconcile(&bench.ctx, &bench.key).await.ok();
        }
        bench.sync();
    }
    let writes = bench.writes();
    assert_eq!(
        writes
            .iter()
            .filter(|w| w.starts_with("POST pods/"))
            .count(),
        500
    );
    assert!(!writes.iter().any(|w| w.starts_with("DELETE")));
}
