//! Row H1: groups, and what their members do.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use http::Method;
use serde_json::{Value, json};

use super::bench::*;
use super::power_rows::machine_that_is;
use crate::flow::Flow;

mod members;

const APPLY: &str = "vmlet.dev.protected/apply-power-state-time";
const RECORD: &str = "vmlet.dev.protected/group-power-state";
const SYNCED: &str = "PowerStateSynced";

/// The time that many seconds after the beginning of a test.
fn at(seconds: i64) -> String {
    let time = jiff::Timestamp::from_second(START + seconds).unwrap();
    time.to_string()
}

fn tier(members: &[&str], more: Value) -> Value {
    let members = members.iter().map(|name| json!({ "name": name }));
    let mut tier = json!({ "members": members.collect::<Vec<_>>() });
    json_patch::merge(&mut tier, &more);
    tier
}

fn power(state: &str) -> Value {
    json!({ "spec": { "powerState": state } })
}

/// A machine of the group `g` that was never started.
fn member(bench: &mut Bench, name: &str, desired: Value) {
    let mut spec = json!({ "groupName": "g", "runStrategy": null });
    json_patch::merge(&mut spec, &desired);
    bench.machine_named(name, json!({ "spec": spec }));
}

fn three(bench: &mut Bench, tiers: [Value; 3], state: &str) {
    for name in ["a", "b", "c"] {
        member(bench, name, json!({ "powerState": "PoweredOff" }));
    }
    bench.group("g", json!({ "powerState": state, "bootOrder": tiers }));
}

/// The group `g` with the machine `vm`, which is in that state, as a member that has it.
async fn grouped(state: &str) -> Bench {
    let mut bench = machine_that_is(state, json!({})).await;
    bench.edit(VMS, "vm", json!({ "spec": { "groupName": "g" } }));
    let delays = json!({ "powerOnDelay": "30s", "powerOffDelay": "30s" });
    bench.group(
        "g",
        json!({ "powerState": state, "bootOrder": [tier(&["vm"], delays)] }),
    );
    bench.settled("g").await;
    bench.settle().await.ok();
    bench.forward(31);
    bench.settle().await.ok();
    bench.settled("g").await;
    assert_eq!(bench.group_condition("g"), "True/Ready");
    bench.writes();
    bench.events();
    bench
}

#[tokio::test]
async fn h1a_three_tiers_are_powered_on_after_their_delays_which_add_up() {
    let mut bench = Bench::new();
    let tiers = [
        tier(&["a"], json!({})),
        tier(&["b"], json!({ "powerOnDelay": "30s" })),
        tier(&["c"], json!({ "powerOnDelay": "19.5s" })),
    ];
    three(&mut bench, tiers, "PoweredOn");
    bench.settled("g").await;
    let writes = bench.writes();
    assert_eq!(
        writes[0], "PATCH virtualmachinegroups/g/status",
        "on record first"
    );
    let times = ["a", "b", "c"].map(|name| bench.annotation(name, APPLY));
    assert_eq!(times, ["-".to_owned(), at(30), at(50)]);
    for name in ["a", "b", "c"] {
        assert_eq!(bench.get(VMS, name)["spec"]["powerState"], "PoweredOn");
    }
    let status = bench.get(GROUPS, "g")["status"].clone();
    assert_eq!(
        status["powerChange"]["tierTimes"],
        json!([at(0), at(30), at(50)])
    );
    assert_eq!(status["lastUpdatedPowerStateTime"], at(0));
    assert!(
        bench
            .member("g", "c", SYNCED)
            .starts_with("False/Pending it changes at")
    );
    assert_eq!(bench.events(), ["PowerStateChanged", "PowerStateApplied"]);
}

#[tokio::test]
async fn h1b_they_are_powered_off_in_reverse_order() {
    let mut bench = Bench::new();
    let tiers = [
        tier(&["a"], json!({ "powerOffDelay": "5s" })),
        tier(&["b"], json!({ "powerOffDelay": "10s" })),
        tier(&["c"], json!({ "powerOnDelay": "1h" })),
    ];
    three(&mut bench, tiers, "PoweredOff");
    for name in ["a", "b", "c"] {
        bench.edit(VMS, name, power("PoweredOn"));
    }
    bench.settled("g").await;
    let times = ["a", "b", "c"].map(|name| bench.annotation(name, APPLY));
    assert_eq!(times, [at(15), at(10), "-".to_owned()]);
    // Suspension has no delays, and a group may bring its modes.
    bench.edit(VMS, "a", power("PoweredOn"));
    let modes = json!({ "powerState": "Suspended", "suspendMode": "Hard", "powerOffMode": "Soft" });
    bench.edit(GROUPS, "g", json!({ "spec": modes }));
    bench.settled("g").await;
    assert_eq!(bench.annotation("a", APPLY), "-");
    let spec = bench.get(VMS, "a")["spec"].clone();
    assert_eq!(spec["powerState"], "Suspended");
    assert_eq!(
        (&spec["suspendMode"], &spec["powerOffMode"]),
        (&json!("Hard"), &json!("Soft"))
    );
}

#[tokio::test]
async fn h1c_a_direct_change_of_a_member_acts_at_once_and_stays() {
    let mut bench = grouped("PoweredOn").await;
    bench.edit(GROUPS, "g", power("PoweredOff"));
    bench.settled("g").await;
    assert_eq!(seconds(&bench.pass().await), Some(30));
    assert!(
        bench.pod()["metadata"]["deletionTimestamp"].is_null(),
        "delayed"
    );

    // Back on: the group's time no longer counts, and the group does not repeat its change.
    bench.edit(VMS, "vm", power("PoweredOn"));
    bench.settle().await.ok();
    assert_eq!(bench.annotation("vm", APPLY), "-");
    bench.forward(60);
    bench.writes();
    bench.settled("g").await;
    let writes = bench.writes();
    assert!(
        !writes.iter().any(|w| w.contains("virtualmachines/vm")),
        "{writes:?}"
    );
    let reported = bench.member("g", "vm", SYNCED);
    assert!(
        reported.contains("powerState=PoweredOn was set in the machine"),
        "{reported}"
    );
    assert!(
        bench
            .group_condition("g")
            .starts_with("False/MembersNotReady")
    );

    bench.edit(VMS, "vm", power("PoweredOff"));
    bench.settle().await.ok();
    assert!(
        !bench.pod()["metadata"]["deletionTimestamp"].is_null(),
        "at once"
    );

    // A new time of a forced synchronization gives it to all members again.
    bench.edit(VMS, "vm", power("PoweredOn"));
    let again = json!({ "spec": { "nextForcePowerStateSyncTime": at(95) } });
    bench.edit(GROUPS, "g", again);
    assert_eq!(seconds(&bench.group_settles("g").await), Some(4), "later");
    assert_eq!(bench.get(VMS, "vm")["spec"]["powerState"], "PoweredOn");
    bench.forward(4);
    bench.settled("g").await;
    assert_eq!(bench.get(VMS, "vm")["spec"]["powerState"], "PoweredOff");
}

#[tokio::test]
async fn h1d_a_machine_that_its_group_does_not_name_gets_no_disk_and_no_retry() {
    let mut bench = Bench::new();
    let both = json!({ "groupName": "g" });
    bench.machine(json!({ "spec": both }));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("GroupLinked"), "False/NotFound");

    let spec =
        json!({ "powerState": "PoweredOn", "bootOrder": [tier(&["other", "none"], json!({}))] });
    bench.group("g", spec);
    bench.machine_named("other", json!({}));
    assert!(is_wait(&bench.settle().await));
    assert_eq!(bench.condition_text("GroupLinked"), "False/NotMember");
    assert!(bench.placeholder("vm").is_none());
    assert_eq!(
        bench.group_settles("g").await.unwrap(),
        Flow::Continue,
        "no retry"
    );
    assert!(
        bench
            .member("g", "other", "GroupLinked")
            .starts_with("False/NotMember set groupName: g")
    );
    assert!(
        bench
            .member("g", "none", "GroupLinked")
            .starts_with("False/NotFound")
    );
    assert_eq!(bench.annotation("other", RECORD), "-");
    assert!(bench.get(GROUPS, "g")["status"]["lastUpdatedPowerStateTime"].is_null());

    let order = json!({ "spec": { "bootOrder": [tier(&["vm"], json!({}))] } });
    bench.edit(GROUPS, "g", order);
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("GroupLinked"), "True/Linked");
    assert!(bench.placeholder("vm").is_some());
}

#[tokio::test]
async fn h1e_groups_in_a_cycle_say_so_and_touch_no_member() {
    let mut bench = Bench::new();
    let order = |name: &str| json!([{ "members": [{ "kind": "VirtualMachineGroup", "name": name }, { "name": "vm" }] }]);
    bench.group(
        "g",
        json!({ "groupName": "h", "powerState": "PoweredOn", "bootOrder": order("h") }),
    );
    bench.group(
        "h",
        json!({ "groupName": "g", "powerState": "PoweredOff", "bootOrder": order("g") }),
    );
    bench.machine(json!({ "spec": { "groupName": "g" } }));
    assert!(is_wait(&bench.settle().await));
    assert_eq!(bench.condition_text("GroupLinked"), "False/Error");
    bench.writes();
    for name in ["g", "h"] {
        bench.settled(name).await;
    }
    let reported = bench.group_condition("g");
    assert!(reported.starts_with("False/Error"), "{reported}");
    assert!(reported.contains("g -> h -> g"), "{reported}");
    let status = |name: &str| format!("PATCH virtualmachinegroups/{name}/status");
    assert_eq!(bench.writes(), [status("g"), status("h")]);
    assert_eq!(bench.events(), ["GroupCycle", "GroupCycle"]);

    bench.edit(GROUPS, "g", json!({ "spec": { "groupName": null } }));
    bench.settled("g").await;
    bench.settled("h").await;
    assert!(
        bench
            .group_condition("h")
            .starts_with("False/MembersNotReady")
    );
    assert_eq!(bench.get(GROUPS, "h")["spec"]["powerState"], "PoweredOn");
}

#[tokio::test]
async fn a_tier_goes_on_when_the_one_before_is_not_ready_in_time() {
    let mut bench = Bench::new();
    let tiers = [
        tier(&["a"], json!({})),
        tier(
            &["b"],
            json!({ "waitForReady": true, "readyTimeout": "1m" }),
        ),
        tier(&["c"], json!({ "powerOnDelay": "10s" })),
    ];
    three(&mut bench, tiers, "PoweredOn");
    assert_eq!(seconds(&bench.group_settles("g").await), Some(60));
    assert_eq!(bench.annotation("b", RECORD), "-");
    bench.forward(60);
    bench.settled("g").await;
    assert_ne!(bench.annotation("b", RECORD), "-");
    assert_eq!(bench.annotation("c", APPLY), at(70));
    assert!(bench.events().contains(&"ReadyTimeout".to_owned()));
}

#[tokio::test]
async fn a_tier_whose_predecessor_is_ready_before_its_time_is_looked_at_then() {
    let mut bench = Bench::new();
    let tiers = [
        tier(&["a"], json!({ "powerOnDelay": "30s" })),
        tier(&["b"], json!({ "waitForReady": true })),
        tier(&["c"], json!({})),
    ];
    three(&mut bench, tiers, "PoweredOn");
    // It is on and ready already, so that nothing of it changes at its time.
    let ready = json!([{ "type": "Ready", "status": "True", "reason": "PodReady", "message": "",
        "lastTransitionTime": at(0) }]);
    let up = json!({ "powerState": "PoweredOn", "conditions": ready });
    let mut is_up = power("PoweredOn");
    is_up["status"] = up;
    bench.edit(VMS, "a", is_up);
    assert_eq!(seconds(&bench.group_settles("g").await), Some(30));
    assert_eq!(bench.annotation("b", RECORD), "-");
    bench.forward(30);
    bench.settled("g").await;
    assert_ne!(bench.annotation("b", RECORD), "-");
}

#[tokio::test]
async fn a_group_without_a_power_state_changes_no_member() {
    let mut bench = Bench::new();
    member(&mut bench, "a", json!({ "powerState": "PoweredOff" }));
    bench.group("g", json!({ "bootOrder": [tier(&["a"], json!({}))] }));
    bench.settled("g").await;
    assert_eq!(bench.annotation("a", RECORD), "-");
    assert_eq!(bench.member("g", "a", SYNCED), "-");
    assert!(
        bench
            .member("g", "a", "PlacementReady")
            .starts_with("False/PendingPlacement")
    );
}

#[tokio::test]
async fn a_group_within_a_group_counts_its_delays_from_its_own_time() {
    let mut bench = Bench::new();
    member(&mut bench, "a", json!({ "powerState": "PoweredOff" }));
    let inner = [tier(&["a"], json!({ "powerOnDelay": "5s" }))];
    // It has a desired power state of its own, and waits for that of the group above.
    bench.group(
        "g",
        json!({ "groupName": "top", "powerState": "PoweredOff", "bootOrder": inner }),
    );
    let nested = json!([{ "kind": "VirtualMachineGroup", "name": "g" }]);
    let outer = [json!({ "members": nested, "powerOnDelay": "20s" })];
    bench.group(
        "top",
        json!({ "powerState": "PoweredOn", "bootOrder": outer }),
    );
    bench.settled("g").await;
    assert_eq!(bench.annotation("a", RECORD), "-");
    bench.settled("top").await;
    bench.settled("g").await;
    assert_eq!(bench.get(GROUPS, "g")["spec"]["powerState"], "PoweredOn");
    assert_eq!(bench.annotation("a", APPLY), at(25));
    bench.settled("top").await;
    assert!(
        bench
            .member("top", "g", SYNCED)
            .contains("a do not have the power state yet")
    );

    // A direct change of the group within has its own time.
    bench.edit(GROUPS, "g", power("PoweredOff"));
    bench.settled("g").await;
    assert_eq!(bench.get(VMS, "a")["spec"]["powerState"], "PoweredOff");
    assert_eq!(bench.annotation("a", APPLY), "-");
}

#[tokio::test]
async fn machines_of_a_group_are_placed_apart_also_from_one_that_is_off() {
    let mut bench = Bench::new();
    let zone = "topology.kubernetes.io/zone";
    let placement = json!([{ "topologyKey": zone, "policy": "Apart" }]);
    let spec = json!({ "placement": placement, "bootOrder": [tier(&["vm", "a"], json!({}))] });
    bench.group("g", spec);
    member(&mut bench, "a", json!({ "powerState": "PoweredOff" }));
    bench.machine(json!({ "spec": { "groupName": "g" } }));
    bench.settle().await.ok();
    let pod = bench.placeholder("vm").unwrap();
    let group = json!({ "matchLabels": { "vmlet.dev.protected/group": "g" } });
    assert_eq!(pod["metadata"]["labels"]["vmlet.dev.protected/group"], "g");
    let apart = "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    let term = json!([{ "labelSelector": group, "topologyKey": zone }]);
    assert_eq!(pod.pointer(apart), Some(&term));

    // The other one is off, so that only its record shows where its disk is.
    bench.edit(VMS, "a", json!({ "status": { "nodeName": "n1" } }));
    bench.placeholder_is_bound("vm", "n1");
    bench.pass().await.ok();
    let replaced = bench.placeholder("vm");
    let is_leaving = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
    assert!(replaced.as_ref().is_none_or(is_leaving), "{replaced:?}");
    bench.placeholder_is_gone("vm");
    bench.settle().await.ok();
    let pod = bench.placeholder("vm").unwrap();
    let nodes = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
        /nodeSelectorTerms/0/matchExpressions/0";
    let elsewhere = json!({ "key": zone, "operator": "NotIn", "values": ["z1"] });
    assert_eq!(pod.pointer(nodes), Some(&elsewhere));
}
