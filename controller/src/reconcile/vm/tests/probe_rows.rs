//! Rows B: readiness probes.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::bench::*;

async fn probed(probe: Value) -> Bench {
    let mut bench = Bench::new();
    bench
        .booting(json!({ "spec": { "readinessProbe": probe } }))
        .await;
    bench
}

#[tokio::test]
async fn b1a_a_port_that_opens_is_ready_and_an_event_once() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut bench = Bench::new();
    let (sender, mut woken) = mpsc::channel(8);
    bench.ctx.shared.prober.wake_by(sender);
    let probe = json!({ "tcpSocket": { "port": port, "host": "127.0.0.1" } });
    bench
        .running(json!({ "spec": { "readinessProbe": probe } }))
        .await;
    assert_eq!(woken.recv().await.unwrap(), bench.key);
    bench.events();
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    assert_eq!(bench.events(), ["Ready"]);
    bench.settle().await.ok();
    assert_eq!(bench.events(), Vec::<String>::new());
}

#[tokio::test]
async fn b1b_a_yellow_heartbeat_is_not_enough_for_green() {
    let mut bench = probed(json!({ "guestHeartbeat": { "thresholdStatus": "green" } })).await;
    assert_eq!(bench.condition_text("Ready"), "Unknown/Unknown");
    bench.facts(json!({ "power": "Paused", "agent": "Connected" }));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "False/NotReady");
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "readinessProbe": {
            "guestHeartbeat": { "thresholdStatus": "yellow" },
        }}}),
    );
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    bench.facts(json!({ "power": "On", "agent": "NotRunning" }));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "False/NotReady");
}

#[tokio::test]
async fn b1c_a_value_that_does_not_match_is_not_ready() {
    let mut bench = probed(json!({ "guestInfo": [{ "key": "app", "value": "^up$" }] })).await;
    assert_eq!(bench.condition_text("Ready"), "Unknown/Unknown");
    let reported = |info: Value| json!({ "power": "On", "agent": "Connected", "info": info });
    for (info, ready) in [
        (json!({}), "False/NotReady"),
        (json!({ "app": "upside down" }), "False/NotReady"),
        (json!({ "other": "up" }), "False/NotReady"),
        (json!({ "app": "up", "other": "x" }), "True/ProbeSucceeded"),
    ] {
        bench.facts(reported(info.clone()));
        bench.settle().await.ok();
        assert_eq!(bench.condition_text("Ready"), ready, "{info}");
    }
    // The status does not keep the previous result of the probe.
    bench.facts(json!({ "power": "On", "agent": "NotRunning", "info": { "app": "up" } }));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "False/NotReady");
}

#[tokio::test]
async fn b1d_a_machine_that_is_off_is_not_ready() {
    let mut bench = probed(json!({ "guestHeartbeat": {} })).await;
    bench.facts(json!({ "power": "On", "agent": "Connected" }));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert!(bench.condition_text("Ready").starts_with("False/"));
}

#[tokio::test]
async fn b1e_a_probe_that_is_removed_is_forgotten() {
    let mut bench = probed(json!({ "tcpSocket": { "port": 9, "host": "127.0.0.1" } })).await;
    assert_eq!(bench.ctx.shared.prober.len(), 1);
    bench.edit(VMS, "vm", json!({ "spec": { "readinessProbe": null } }));
    bench.facts(alive());
    bench.settle().await.ok();
    assert!(bench.ctx.shared.prober.is_empty());
    assert_eq!(bench.condition_text("Ready"), "True/PodReady");
}

/// Services go by kubelet's probe, and network policies let it pass.
#[tokio::test]
async fn a_port_that_kubelet_probes_is_not_probed_by_the_controller() {
    let probe =
        |port: u16| json!({ "spec": { "readinessProbe": { "tcpSocket": { "port": port } } } });
    let mut bench = Bench::new();
    bench.running(probe(80)).await;
    assert!(bench.ctx.shared.prober.is_empty());
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    let fails = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    bench.edit(PODS, "vm", fails);
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "False/NotReady");
    assert_eq!(bench.events(), ["NotReady"]);
    // The pod has the probe of its start.
    bench.edit(VMS, "vm", probe(81));
    bench.settle().await.ok();
    assert_eq!(bench.ctx.shared.prober.len(), 1);
}

/// A NetworkPolicy that lets kubelet's probes through may refuse the controller's.
#[tokio::test]
async fn a_probe_of_the_controller_that_fails_says_from_where_it_connects() {
    let mut bench = Bench::new();
    let (sender, mut woken) = mpsc::channel(8);
    bench.ctx.shared.prober.wake_by(sender);
    // Nothing listens there.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let probe = json!({ "tcpSocket": { "port": port, "host": "127.0.0.1" } });
    bench
        .running(json!({ "spec": { "readinessProbe": probe } }))
        .await;
    woken.recv().await.unwrap();
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "False/NotReady");
    let message = |bench: &Bench| bench.condition("Ready").unwrap().message;
    assert!(
        message(&bench).contains("it names a host, it connects from the controller's pod"),
        "{}",
        message(&bench)
    );
    let edited = json!({ "tcpSocket": { "port": port, "host": null } });
    bench.edit(VMS, "vm", json!({ "spec": { "readinessProbe": edited } }));
    bench.settle().await.ok();
    woken.recv().await.unwrap();
    bench.settle().await.ok();
    assert!(
        message(&bench).contains("after a restart kubelet makes it"),
        "{}",
        message(&bench)
    );
}

/// A new leader has probed no machine yet: that is no change of the machines.
#[tokio::test]
async fn a_new_process_lets_the_last_answer_stand_until_it_has_its_own() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let probe = json!({ "tcpSocket": { "port": port, "host": "127.0.0.1" } });
    let mut bench = Bench::new();
    let (sender, mut woken) = mpsc::channel(8);
    bench.ctx.shared.prober.wake_by(sender);
    bench
        .running(json!({ "spec": { "readinessProbe": probe } }))
        .await;
    woken.recv().await.unwrap();
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    bench.events();
    bench.writes();
    bench.ctx.shared = crate::shared::Shared::default();
    bench.pass().await.ok();
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    assert_eq!(bench.writes(), Vec::<String>::new());
    assert_eq!(bench.events(), Vec::<String>::new());
    // Another instance is another matter.
    bench.ctx.shared = crate::shared::Shared::default();
    bench.edit(PODS, "vm", json!({ "metadata": { "uid": "another" } }));
    bench.pass().await.ok();
    assert_eq!(bench.condition_text("Ready"), "Unknown/Unknown");
}

#[tokio::test]
async fn a_guest_without_a_probe_is_ready_after_its_first_lease_or_agent_start() {
    for sign in [
        json!({ "power": "On", "agent": "Connected" }),
        json!({ "power": "On", "interfaces": [{ "name": "eth0", "addresses": ["10.1.0.7/24"] }] }),
    ] {
        let mut bench = Bench::new();
        bench.booting(json!({})).await;
        assert_eq!(bench.condition_text("Ready"), "False/NoSignOfLife");
        assert!(!bench.status().ready);
        bench.facts(sign);
        bench.settle().await.ok();
        assert_eq!(bench.condition_text("Ready"), "True/PodReady");
        assert!(bench.status().ready);
        // Its agent may end.
        bench.facts(json!({ "power": "On", "agent": "NotRunning" }));
        bench.settle().await.ok();
        assert_eq!(bench.condition_text("Ready"), "True/PodReady");
    }
}

#[tokio::test]
async fn a_guest_that_stays_silent_gets_a_hint_after_two_minutes() {
    let mut bench = Bench::new();
    bench.booting(json!({})).await;
    bench.facts(json!({ "power": "On", "agent": "NotRunning" }));
    bench.forward(119);
    let delay = seconds(&bench.settle().await);
    assert_eq!(delay, Some(1));
    let text = |bench: &Bench| bench.condition("Ready").unwrap().message;
    assert!(text(&bench).contains("boots"), "{}", text(&bench));
    bench.forward(1);
    bench.settle().await.ok();
    assert!(
        text(&bench).contains("look at its console"),
        "{}",
        text(&bench)
    );
}

#[tokio::test]
async fn a_machine_without_network_or_with_a_silent_image_is_ready_when_it_runs() {
    let mut bench = Bench::new();
    let alone = json!({ "spec": { "network": { "disabled": true } } });
    bench.booting(alone).await;
    assert_eq!(bench.condition_text("Ready"), "True/PodReady");
    let mut bench = Bench::new();
    bench.edit(
        IMAGES,
        "debian",
        json!({ "spec": { "ipAssurance": "PodIP" } }),
    );
    bench.booting(json!({})).await;
    assert_eq!(bench.condition_text("Ready"), "True/PodReady");
}
