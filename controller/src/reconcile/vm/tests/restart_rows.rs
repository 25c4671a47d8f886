//! Restarts of machines that could not start again.
//!
//! Invariant: a guest runs on while its start is known to fail; a power-off is never held up.
//! Failure: none of its own.

use crds::vm::PrintableStatus as Word;
use rstest::rstest;
use serde_json::{Value, json};

use super::bench::*;
use crate::reconcile::vm::error::is_unwatched;

/// A running machine of that strategy and mode.
async fn running(strategy: &str, mode: &str) -> Bench {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.forward(700);
    let spec = json!({ "runStrategy": strategy, "powerOffMode": mode });
    bench.edit(VMS, "vm", json!({ "spec": spec }));
    bench.settle().await.ok();
    bench
}

/// Requests that its pod ends, and perhaps that another one starts.
fn request(bench: &mut Bench, actions: &[&str]) {
    let uid = bench.pod()["metadata"]["uid"].clone();
    let one = |action: &&str| match *action {
        "Stop" => json!({ "action": "Stop", "uid": uid }),
        action => json!({ "action": action }),
    };
    let requests: Vec<Value> = actions.iter().map(one).collect();
    let status = json!({ "stateChangeRequests": requests });
    bench.edit(VMS, "vm", json!({ "status": status }));
}

fn is_ending(bench: &Bench) -> bool {
    let is_deleted = !bench.pod()["metadata"]["deletionTimestamp"].is_null();
    is_deleted || !bench.tasks("GuestShutdown").is_empty()
}

#[rstest]
#[tokio::test]
async fn a_restart_waits_for_what_the_start_needs(
    #[values("Always", "RerunOnFailure", "Manual")] strategy: &str,
    #[values("TrySoft", "Hard", "Soft")] mode: &str,
) {
    let mut bench = running(strategy, mode).await;
    let class = bench.get(CLASSES, "small");
    bench.remove(CLASSES, "small");
    request(&mut bench, &["Stop", "Start"]);
    let text = failure(&bench.settle().await);
    let words = "not stopped for its restart, since it could not start again: \
                 VirtualMachineClass small does not exist in namespace ns";
    assert_eq!(text, words);
    assert!(!is_ending(&bench));
    let status = bench.status();
    assert_eq!(status.printable_status, Some(Word::Running));
    assert_eq!(status.message.as_deref(), Some(words));
    assert_eq!(status.state_change_requests.len(), 2);
    assert_eq!(status.instance.unwrap().afterwards, None);
    assert!(bench.events().contains(&"UpdateFailure".to_owned()));

    bench.put(CLASSES, class);
    bench.sync();
    bench.settle().await.ok();
    assert!(is_ending(&bench));
    assert_eq!(bench.status().printable_status, Some(Word::Stopping));
}

/// It may be off at any moment.
#[tokio::test]
async fn a_guest_that_was_asked_to_power_off_is_stopping_whatever_is_missing_then() {
    let mut bench = running("Manual", "Soft").await;
    request(&mut bench, &["Stop", "Start"]);
    bench.settle().await.ok();
    assert_eq!(bench.tasks("GuestShutdown").len(), 1);
    bench.remove(CLASSES, "small");
    bench.passes().await;
    assert_eq!(bench.status().printable_status, Some(Word::Stopping));
    // It did not answer, and is not asked again.
    bench.task_ends("GuestShutdown", "Error");
    let text = failure(&bench.settle().await);
    assert!(text.starts_with("not stopped for its restart"), "{text}");
    assert_eq!(bench.status().printable_status, Some(Word::Running));
}

#[rstest]
#[case::of_always("Always", "Halted", &["Stop", "Start"])]
#[case::of_rerun("RerunOnFailure", "RerunOnFailure", &["Stop"])]
#[case::of_manual("Manual", "Manual", &["Stop"])]
#[case::of_once("Always", "Once", &["Stop", "Start"])]
#[tokio::test]
async fn a_power_off_is_held_up_by_nothing(
    #[case] strategy: &str,
    #[case] then: &str,
    #[case] requests: &[&str],
    #[values("TrySoft", "Soft")] mode: &str,
) {
    let mut bench = running(strategy, mode).await;
    bench.remove(CLASSES, "small");
    bench.remove(IMAGES, "debian");
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": then } }));
    request(&mut bench, requests);
    bench.settle().await.ok();
    assert!(is_ending(&bench));
    assert_eq!(bench.status().printable_status, Some(Word::Stopping));
}

#[tokio::test]
async fn a_restart_waits_for_a_claim_that_was_added_and_does_not_exist() {
    let mut bench = running("Manual", "TrySoft").await;
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    bench.edit(VMS, "vm", json!({ "spec": { "volumes": [volume] } }));
    request(&mut bench, &["Stop", "Start"]);
    let text = failure(&bench.settle().await);
    assert!(text.ends_with("data (claim data does not exist)"), "{text}");
    assert!(!is_ending(&bench));
    bench.claim("data", "Bound");
    bench.settle().await.ok();
    assert!(is_ending(&bench));
}

#[tokio::test]
async fn a_restart_waits_for_a_machine_type_that_its_node_has() {
    let mut bench = running("Manual", "TrySoft").await;
    bench.facts(json!({ "power": "On", "agent": "Connected", "machineType": "pc-q35-7.2" }));
    bench.agent("n1", &json!({ "machineTypes": ["pc-q35-7.2"] }));
    let least = |version: &str| json!({ "spec": { "minMachineType": version } });
    bench.edit(VMS, "vm", least("pc-q35-99.0"));
    request(&mut bench, &["Stop", "Start"]);
    let ended = bench.settle().await;
    assert!(failure(&ended).contains("node n1 does not have pc-q35-99.0"));
    assert!(is_unwatched(&ended.unwrap_err()));
    assert!(!is_ending(&bench));
    bench.edit(VMS, "vm", least("pc-q35-7.2"));
    bench.settle().await.ok();
    assert!(is_ending(&bench));
}

#[tokio::test]
async fn a_restart_waits_for_the_firmware_that_its_node_has() {
    let mut bench = running("Manual", "TrySoft").await;
    bench.edit(VMS, "vm", json!({ "spec": { "firmware": "UEFI" } }));
    request(&mut bench, &["Stop", "Start"]);
    let ended = bench.settle().await;
    assert!(failure(&ended).contains("node n1, which cannot boot it by UEFI"));
    assert!(is_unwatched(&ended.unwrap_err()));
    assert!(!is_ending(&bench));
    let labels = json!({ "node.vmlet.dev/uefi": "true" });
    bench.edit(NODES, "n1", json!({ "metadata": { "labels": labels } }));
    bench.settle().await.ok();
    assert!(is_ending(&bench));
}

/// A restart at a time that came meanwhile is not lost with the one that waits.
#[tokio::test]
async fn a_restart_that_waits_uses_up_no_time_of_another() {
    let mut bench = running("Always", "TrySoft").await;
    bench.remove(CLASSES, "small");
    let time = bench.time();
    bench.edit(VMS, "vm", json!({ "spec": { "nextRestartTime": time } }));
    request(&mut bench, &["Stop", "Start"]);
    assert!(failure(&bench.settle().await).contains("not stopped for its restart"));
    assert_eq!(bench.status().last_restart_time, None);
}
