//! Rows B: readiness probes.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;

async fn probed(probe: Value) -> Bench {
    let mut bench = Bench::new();
    bench
        .booting(json!({ "spec": { "readinessProbe": probe } }))
        .await;
    bench
}

fn spec(probe: &Value) -> Value {
    json!({ "spec": { "readinessProbe": probe } })
}

/// A probe that names a host, so that the node makes it.
fn with_host(port: u16) -> Value {
    json!({ "tcpSocket": { "port": port, "host": "10.9.0.5" } })
}

/// What the agent reports of a guest whose node makes this probe.
fn made(port: u16, host: Option<&str>, outcome: &str) -> Value {
    let probe = json!({ "port": port, "host": host, "periodSeconds": 10, "timeoutSeconds": 1 });
    let mut facts = alive();
    facts["probe"] = json!({ "probe": probe, "outcome": outcome });
    facts
}

/// The tasks that set probes, as node, pod and probe, the newest last.
fn set(bench: &Bench) -> Vec<Value> {
    let mut all = bench.tasks("SetProbe");
    let version = |task: &Value| {
        let version = task["metadata"]["resourceVersion"].as_str();
        version.and_then(|version| version.parse::<u64>().ok())
    };
    all.sort_by_key(version);
    all.into_iter().map(|task| task["spec"].clone()).collect()
}

#[tokio::test]
async fn b1a_a_port_that_opens_is_ready_and_an_event_once() {
    let mut bench = Bench::new();
    bench.probing();
    bench.running(spec(&with_host(80))).await;
    let tasks = set(&bench);
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    let expected = json!({
        "port": 80, "host": "10.9.0.5", "periodSeconds": 10, "timeoutSeconds": 1,
    });
    assert_eq!(tasks[0]["probe"], expected);
    assert_eq!(tasks[0]["nodeName"], "n1");
    assert_eq!(tasks[0]["instanceUID"], bench.pod()["metadata"]["uid"]);
    assert_eq!(bench.condition_text("Ready"), "Unknown/Unknown");
    bench.task_ends("SetProbe", "Success");
    bench.facts(made(80, Some("10.9.0.5"), "Unknown"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "Unknown/Unknown");
    bench.events();
    bench.facts(made(80, Some("10.9.0.5"), "Connected"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    assert_eq!(bench.events(), ["Ready"]);
    bench.settle().await.ok();
    assert_eq!(bench.events(), Vec::<String>::new());
    assert_eq!(set(&bench).len(), 1);
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
    let mut bench = Bench::new();
    bench.probing();
    bench.running(spec(&with_host(9))).await;
    bench.task_ends("SetProbe", "Success");
    bench.facts(made(9, Some("10.9.0.5"), "Refused"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "False/NotReady");
    bench.edit(VMS, "vm", spec(&Value::Null));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "True/PodReady");
    let tasks = set(&bench);
    assert_eq!(tasks.len(), 2, "{tasks:?}");
    let ends = tasks.iter().filter(|task| task["probe"].is_null());
    assert_eq!(ends.count(), 1, "{tasks:?}");
    bench.task_ends("SetProbe", "Success");
    bench.facts(alive());
    bench.settle().await.ok();
    assert_eq!(set(&bench).len(), 2);
}

/// Services go by kubelet's probe, and network policies let it pass.
#[tokio::test]
async fn a_port_that_kubelet_probes_is_probed_by_the_node_once_it_is_another_one() {
    let probe = |port: u16| spec(&json!({ "tcpSocket": { "port": port } }));
    let mut bench = Bench::new();
    bench.probing();
    bench.running(probe(80)).await;
    assert_eq!(set(&bench), Vec::<Value>::new());
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    let fails = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    bench.edit(PODS, "vm", fails);
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "False/NotReady");
    assert_eq!(bench.events(), ["NotReady"]);
    // The pod has the probe of its start.
    bench.edit(VMS, "vm", probe(81));
    bench.settle().await.ok();
    let tasks = set(&bench);
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    assert_eq!(tasks[0]["probe"]["port"], 81);
    assert!(tasks[0]["probe"]["host"].is_null(), "{tasks:?}");
    bench.task_ends("SetProbe", "Success");
    bench.facts(made(81, None, "Connected"));
    bench.settle().await.ok();
    assert_eq!(set(&bench).len(), 1);
    // The first one again, which the pod has; and the second again, which is another task.
    bench.edit(VMS, "vm", probe(80));
    bench.settle().await.ok();
    assert_eq!(set(&bench).len(), 2);
    bench.task_ends("SetProbe", "Success");
    bench.facts(alive());
    bench.settle().await.ok();
    bench.edit(VMS, "vm", probe(81));
    bench.settle().await.ok();
    let ports: Vec<_> = set(&bench)
        .iter()
        .map(|t| t["probe"]["port"].clone())
        .collect();
    assert_eq!(ports.len(), 3, "{ports:?}");
    assert_eq!(ports.iter().filter(|port| **port == 81).count(), 2);
}

#[tokio::test]
async fn a_probe_of_the_node_that_fails_says_why() {
    let mut bench = Bench::new();
    bench.probing();
    bench.running(spec(&with_host(80))).await;
    for (outcome, words) in [
        ("Refused", "does not accept a connection from the node"),
        ("TimedOut", "does not answer the node in time"),
        ("NoAddress", "no address on eth0"),
        ("NotAllowed", "an address of the node"),
    ] {
        bench.facts(made(80, Some("10.9.0.5"), outcome));
        bench.settle().await.ok();
        assert_eq!(bench.condition_text("Ready"), "False/NotReady", "{outcome}");
        let message = bench.condition("Ready").unwrap().message;
        assert!(message.contains(words), "{message}");
    }
}

/// One version of difference: such a node never reports a result.
#[tokio::test]
async fn a_node_that_makes_no_probes_gets_no_task_and_the_condition_names_its_versions() {
    let mut bench = Bench::new();
    bench.agents(&[]);
    bench.running(spec(&with_host(80))).await;
    assert_eq!(bench.condition_text("Ready"), "Unknown/ProbeUnavailable");
    let message = |bench: &Bench| bench.condition("Ready").unwrap().message;
    assert!(
        message(&bench).contains("no vmlet-agent"),
        "{}",
        message(&bench)
    );
    let facts = json!({ "agentVersion": "0.0.8", "daemon": { "version": "0.0.9" } });
    bench.agent_reports("n1", &facts);
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "Unknown/ProbeUnavailable");
    for words in ["vmlet-agent 0.0.8", "vmlet 0.0.9", "upgrade"] {
        assert!(message(&bench).contains(words), "{}", message(&bench));
    }
    assert_eq!(set(&bench), Vec::<Value>::new());
    bench.probing();
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "Unknown/Unknown");
    assert_eq!(set(&bench).len(), 1);
}

/// A new leader does not know what agents can do until the leases are listed.
#[tokio::test]
async fn before_the_leases_are_listed_a_node_is_not_taken_for_an_old_one() {
    let mut bench = Bench::new();
    bench.booting(spec(&with_host(80))).await;
    assert_eq!(bench.condition_text("Ready"), "Unknown/Unknown");
    assert_eq!(set(&bench), Vec::<Value>::new());
    let again = seconds(&bench.settle().await);
    assert!(again.is_some_and(|seconds| seconds <= 10), "{again:?}");
    bench.probing();
    bench.settle().await.ok();
    assert_eq!(set(&bench).len(), 1);
}

#[tokio::test]
async fn a_task_that_sets_a_probe_delays_no_change_of_power() {
    let mut bench = Bench::new();
    bench.probing();
    bench.running(spec(&with_host(80))).await;
    assert_eq!(set(&bench).len(), 1);
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

/// The same for a new leader, which has no other state.
#[tokio::test]
async fn a_probe_that_was_edited_lets_the_last_answer_stand_until_it_has_its_own() {
    let mut bench = Bench::new();
    bench.probing();
    bench.running(spec(&with_host(80))).await;
    bench.task_ends("SetProbe", "Success");
    bench.facts(made(80, Some("10.9.0.5"), "Connected"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    bench.edit(VMS, "vm", spec(&with_host(81)));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    assert_eq!(set(&bench).len(), 2);
    bench.ctx.shared = crate::shared::Shared::default();
    bench.events();
    bench.writes();
    bench.pass().await.ok();
    assert_eq!(bench.condition_text("Ready"), "True/ProbeSucceeded");
    assert_eq!(bench.writes(), Vec::<String>::new());
    assert_eq!(bench.events(), Vec::<String>::new());
    // Another instance is another matter.
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
