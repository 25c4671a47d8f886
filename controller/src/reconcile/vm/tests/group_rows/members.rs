//! Members of a group: what reaches them, and what they do by themselves.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

#[tokio::test]
async fn a_new_member_does_not_start_before_its_group_has_set_its_power_state() {
    let mut bench = Bench::new();
    let spec = json!({ "powerState": "PoweredOn", "bootOrder": [
        tier(&["first"], json!({})), tier(&["vm"], json!({ "waitForReady": true })),
    ]});
    bench.group("g", spec);
    member(&mut bench, "first", json!({ "powerState": "PoweredOff" }));
    let more = json!({ "spec": { "groupName": "g" } });
    Box::pin(bench.created(more)).await;
    bench.settled("g").await;
    bench.settle().await.ok();
    assert!(!bench.has_pod(), "the first tier is not ready");
    assert!(
        bench
            .condition("GroupLinked")
            .unwrap()
            .message
            .contains("has not set its power state")
    );
    assert!(
        bench
            .member("g", "vm", SYNCED)
            .contains("until the tier before it is ready")
    );
    assert!(
        bench
            .member("g", "first", SYNCED)
            .starts_with("False/NotSynced")
    );

    let ready = json!([{ "type": "Ready", "status": "True", "reason": "PodReady", "message": "",
        "lastTransitionTime": at(0) }]);
    let up = json!({ "status": { "powerState": "PoweredOn", "conditions": ready } });
    bench.edit(VMS, "first", up);
    bench.settled("g").await;
    bench.settle().await.ok();
    assert!(bench.has_pod());
}

#[tokio::test]
async fn what_members_do_by_themselves_is_reported_once_in_a_while() {
    let mut bench = Bench::new();
    for name in ["a", "b"] {
        member(&mut bench, name, json!({ "powerState": "PoweredOff" }));
    }
    let order = json!([tier(&["a", "b"], json!({}))]);
    bench.group(
        "g",
        json!({ "powerState": "PoweredOn", "bootOrder": order }),
    );
    bench.settled("g").await;
    bench.writes();
    let status = "PATCH virtualmachinegroups/g/status";
    let none: [&str; 0] = [];
    let observed = |state: &str| json!({ "status": { "powerState": state } });
    bench.edit(VMS, "a", observed("PoweredOn"));
    assert_eq!(bench.group_pass("g").await.unwrap(), Flow::Continue);
    assert_eq!(bench.writes(), [status]);

    bench.edit(VMS, "b", observed("PoweredOn"));
    assert_eq!(seconds(&bench.group_pass("g").await), Some(1), "too soon");
    assert_eq!(bench.writes(), none);
    bench.edit(VMS, "a", json!({ "spec": { "groupName": null } }));
    assert!(bench.group_pass("g").await.is_ok());
    assert_eq!(bench.writes(), [status], "a member has left");
    let reported = bench.member("g", "b", SYNCED);
    assert!(reported.starts_with("True"), "with all else: {reported}");

    bench.edit(VMS, "b", observed("PoweredOff"));
    assert!(bench.group_pass("g").await.is_ok());
    assert_eq!(bench.writes(), none);
    bench.forward(1);
    assert!(bench.group_pass("g").await.is_ok());
    assert_eq!(bench.writes(), [status]);
    let reported = bench.member("g", "b", SYNCED);
    assert!(reported.starts_with("False/NotSynced"), "{reported}");
}

#[tokio::test]
async fn members_are_written_in_the_order_in_which_they_change() {
    for (state, order) in [
        ("PoweredOn", ["a", "b", "c"]),
        ("PoweredOff", ["c", "b", "a"]),
    ] {
        let mut bench = Bench::new();
        let tiers = ["a", "b", "c"].map(|name| tier(&[name], json!({})));
        three(&mut bench, tiers, state);
        bench.writes();
        bench.settled("g").await;
        let mut writes = bench.writes();
        writes.retain(|write| write.contains("virtualmachines/"));
        let expected = order.map(|name| format!("PATCH virtualmachines/{name}"));
        assert_eq!(writes, expected, "{state}");
    }
}

#[tokio::test]
async fn a_machine_that_has_started_once_is_held_by_no_group_that_it_joins() {
    let mut bench = machine_that_is("PoweredOff", json!({})).await;
    let spec = json!({ "powerState": "PoweredOn", "bootOrder": [
        tier(&["missing"], json!({})), tier(&["vm"], json!({ "waitForReady": true })),
    ]});
    bench.group("g", spec);
    bench.edit(VMS, "vm", json!({ "spec": { "groupName": "g" } }));
    bench.settled("g").await;
    bench.settle().await.ok();
    assert!(!bench.has_pod(), "its own desired state counts");
    assert_eq!(bench.condition_text("GroupLinked"), "True/Linked");
    assert_eq!(bench.condition("GroupLinked").unwrap().message, "");
    bench.edit(VMS, "vm", power("PoweredOn"));
    bench.settle().await.ok();
    assert!(bench.has_pod());
    assert_eq!(bench.annotation("vm", RECORD), "-", "not given yet");
}

#[tokio::test]
async fn a_member_keeps_its_spelling_and_one_that_follows_requests_is_left_alone() {
    let mut bench = Bench::new();
    member(&mut bench, "a", json!({ "running": true }));
    member(&mut bench, "b", json!({ "runStrategy": "RerunOnFailure" }));
    member(&mut bench, "c", json!({ "runStrategy": "Manual" }));
    let order = json!([tier(&["a", "b", "c"], json!({}))]);
    bench.group(
        "g",
        json!({ "powerState": "PoweredOff", "bootOrder": order }),
    );
    bench.settled("g").await;
    assert_eq!(bench.get(VMS, "a")["spec"]["running"], false);
    assert_eq!(bench.get(VMS, "b")["spec"]["runStrategy"], "Halted");
    assert_eq!(bench.get(VMS, "c")["spec"]["runStrategy"], "Manual");
    assert!(
        bench
            .member("g", "c", SYNCED)
            .starts_with("False/NotSupported a group does not change")
    );
    assert!(bench.events().contains(&"PowerStateNotApplied".to_owned()));
    bench.edit(GROUPS, "g", power("PoweredOn"));
    bench.settled("g").await;
    assert_eq!(bench.get(VMS, "a")["spec"]["running"], true);
    assert_eq!(bench.get(VMS, "b")["spec"]["runStrategy"], "RerunOnFailure");
}

#[tokio::test]
async fn a_member_that_cannot_be_written_is_reported_once_and_the_others_go_on() {
    let mut bench = Bench::new();
    for name in ["a", "b"] {
        member(&mut bench, name, json!({ "powerState": "PoweredOff" }));
    }
    let order = json!([tier(&["a", "b"], json!({}))]);
    bench.group(
        "g",
        json!({ "powerState": "PoweredOn", "bootOrder": order }),
    );
    bench.refuse(Method::PATCH, "virtualmachines/a", 403, 3);
    for _ in 0..2 {
        let failed = failure(&bench.group_pass("g").await);
        assert!(
            failed.contains("failed to change the power state of member a"),
            "{failed}"
        );
    }
    assert!(
        bench
            .member("g", "a", SYNCED)
            .starts_with("False/PowerStatePatchError")
    );
    assert_ne!(bench.annotation("b", RECORD), "-");
    bench.writes();
    failure(&bench.group_pass("g").await);
    assert_eq!(bench.writes(), Vec::<String>::new(), "the same again");
    bench.settled("g").await;
    assert_ne!(bench.annotation("a", RECORD), "-");
}
