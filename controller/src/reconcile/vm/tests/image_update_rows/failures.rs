//! Checks and pulls that fail, answers that get lost, and nodes that cannot do it.
//!
//! Invariant: whatever fails, new machines use the version of before.
//! Failure: none of its own.

use crds::names::EXCLUDE_FROM_BACKUP;

use super::*;

/// An image with its first version, which these of the nodes have.
async fn with_holders(nodes: &[&str], holders: &[&str]) -> Bench {
    let mut bench = with_first(nodes, json!({})).await;
    for node in holders {
        bench.node_has(node, &[format!("vmlet.dev/r.example/d@{}", digest('a'))]);
    }
    bench
}

/// The same by a pre-pull of two nodes.
async fn with_pre_pull() -> Bench {
    let mut bench = with_first(&["n1", "n2"], json!({})).await;
    bench.edit(IMAGES, "debian", json!({ "spec": { "prePull": {} } }));
    settle(&mut bench).await.ok();
    for node in ["n1", "n2"] {
        pull_ends(&mut bench, node, 'a', "Success");
    }
    settle(&mut bench).await.ok();
    bench
}

/// The pull of the node ends with a failure that may pass.
async fn pull_fails(bench: &mut Bench, node: &str) {
    let mut tasks = bench.tasks("PullImage").into_iter();
    let task = tasks.find(|task| task["spec"]["nodeName"] == node);
    let failed = json!({ "state": "Error", "message": "answered 503", "transient": true });
    ends(bench, &task.unwrap(), failed);
    settle(bench).await.ok();
}

#[tokio::test]
async fn a_check_that_fails_keeps_the_version_and_is_repeated_by_another_node_until_it_succeeds() {
    let mut bench = with_first(&["n1", "n2"], json!({ "schedule": "0 * * * *" })).await;
    bench.forward(HOUR);
    pass(&mut bench).await.ok();
    let first = check(&bench)["spec"]["nodeName"].clone();
    fails(&mut bench, "answered 404");
    let waits = settle(&mut bench).await;
    assert_eq!(seconds(&waits), Some(60));
    assert_eq!(versions(&bench), "a! >a");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
    let (says, message) = condition(&bench, "UpToDate");
    assert_eq!(says, "False/CheckFailed");
    let current = digest('a');
    assert_eq!(
        message,
        format!(
            "node {}: answered 404; new machines use {current}",
            first.as_str().unwrap()
        )
    );
    assert_eq!(bench.events(), ["CheckFailed"]);
    assert!(bench.tasks("InspectImage").is_empty());
    assert_eq!(new_machine_uses(&mut bench, "vm").await, named('a'));

    bench.forward(60);
    pass(&mut bench).await.ok();
    assert_ne!(check(&bench)["spec"]["nodeName"], first, "another node");
    fails(&mut bench, "answered 404");
    assert_eq!(seconds(&settle(&mut bench).await), Some(120));
    assert_eq!(status(&bench)["update"]["failedChecks"], 2);
    bench.forward(120);
    pass(&mut bench).await.ok();
    finds(&mut bench, 'a');
    settle(&mut bench).await.ok();
    assert_eq!(up_to_date(&bench), "True/UpToDate");
    assert_eq!(status(&bench)["update"]["failedChecks"], 0);
}

#[tokio::test]
async fn a_pin_to_what_the_registry_does_not_have_shows_on_image_and_machine() {
    let mut bench = with_first(&["n1"], json!({})).await;
    update(&mut bench, json!({ "digest": digest('e') }));
    settle(&mut bench).await.ok();
    let task = bench.task("InspectImage");
    assert_eq!(task["spec"]["image"], json!(named('e')));
    ends(
        &mut bench,
        &task,
        json!({ "state": "Error", "message": "answered 404" }),
    );
    settle(&mut bench).await.ok();
    let (says, message) = condition(&bench, "Ready");
    assert_eq!(
        (says.as_str(), message.as_str()),
        ("False/NotReady", "answered 404")
    );
    bench.machine(json!({}));
    bench.settle().await.ok();
    let image = bench.condition("VirtualMachineImageReady").unwrap();
    assert_eq!(image.message, "image debian is not ready: answered 404");
    update(&mut bench, json!({ "digest": null }));
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "a! >a");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
}

#[tokio::test]
async fn a_version_that_no_node_can_pull_stays_out_of_use_and_one_that_some_have_waits_an_hour() {
    let mut bench = with_pre_pull().await;
    bench.events();
    moves_to(&mut bench, "1", 'b').await;
    assert_eq!(pulling(&bench, 'b'), ["n1", "n2"]);
    for node in ["n1", "n2"] {
        pull_ends(&mut bench, node, 'b', "Error");
    }
    settle(&mut bench).await.ok();
    let (says, message) = condition(&bench, "UpToDate");
    assert_eq!(says, "False/PullFailed");
    assert!(
        message.contains("node n2: said the node; new machines use sha256:a"),
        "{message}"
    );
    assert_eq!(bench.events(), ["VersionFound", "PullFailed"]);
    bench.forward(2 * HOUR);
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b a! >a", "however long that lasts");
    assert_eq!(pulling(&bench, 'b'), ["n1", "n2"], "repeated");

    pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(
        versions(&bench),
        "b! a! >b",
        "one has it, and its time is over"
    );
    let events = bench.events();
    assert!(events.contains(&"PullIncomplete".to_owned()), "{events:?}");
    assert_eq!(pulling(&bench, 'b'), ["n2"], "now by spec.prePull");
    let status = status(&bench);
    assert_eq!(status["prePull"]["ready"], 1, "{status}");
}

#[tokio::test]
async fn nodes_that_do_not_report_digests_are_not_asked_and_a_lost_one_is_replaced() {
    let mut bench = cluster(&["n1", "n2"], json!({}));
    reports(&mut bench, "n1", json!([]));
    reports(&mut bench, "n2", json!([]));
    let waits = pass(&mut bench).await;
    assert_eq!(seconds(&waits), Some(60));
    assert!(bench.tasks("InspectImage").is_empty());
    assert_eq!(up_to_date(&bench), "Unknown/NoNode");
    assert_eq!(condition(&bench, "Ready").0, "Unknown/NoVersion");
    reports(&mut bench, "n2", json!([IMAGE_UPDATES]));
    pass(&mut bench).await.ok();
    assert_eq!(check(&bench)["spec"]["nodeName"], "n2");
    // A translation of the node leads to a web server.
    let task = check(&bench);
    let image = json!({ "format": "qcow2", "bootable": true });
    ends(
        &mut bench,
        &task,
        json!({ "state": "Success", "image": image }),
    );
    settle(&mut bench).await.ok();
    let (says, message) = condition(&bench, "UpToDate");
    assert_eq!(says, "False/CheckFailed");
    assert!(
        message.starts_with("node n2 reports no digest"),
        "{message}"
    );
}

#[tokio::test]
async fn an_answer_that_is_not_on_record_yet_is_taken_again_and_not_counted_twice() {
    let mut bench = with_first(&["n1"], json!({})).await;
    update(&mut bench, json!({ "checkRequest": "1" }));
    pass(&mut bench).await.ok();
    let task = check(&bench);
    finds(&mut bench, 'b');
    // The write fails, as if the controller had ended before it.
    bench.refuse(
        http::Method::PATCH,
        "virtualmachineimages/debian/status",
        500,
        1,
    );
    assert!(pass(&mut bench).await.is_err());
    assert_eq!(versions(&bench), "a! >a");
    assert_eq!(check(&bench)["metadata"]["uid"], task["metadata"]["uid"]);
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b a! >a");
    assert!(bench.tasks("InspectImage").is_empty());
}

#[tokio::test]
async fn a_schedule_without_a_time_says_so_and_requests_still_count() {
    let mut bench = with_first(&["n1"], json!({ "schedule": "0 0 30 2 *" })).await;
    let (says, message) = condition(&bench, "UpToDate");
    assert_eq!(says, "False/InvalidSchedule");
    assert!(
        message.contains("spec.update.schedule is of no use"),
        "{message}"
    );
    assert!(is_quiet(&pass(&mut bench).await));
    comes_into_use(&mut bench, "1", 'b').await;
    assert_eq!(versions(&bench), "b! a! >b");
}

#[tokio::test]
async fn a_name_that_is_too_long_with_a_digest_is_not_supported() {
    let mut bench = cluster(&["n1"], json!({}));
    let reference = format!("r.example/{}:1", "a".repeat(200));
    let source = json!({ "source": { "oci": { "reference": reference } } });
    bench.edit(IMAGES, "debian", json!({ "spec": source }));
    settle(&mut bench).await.ok();
    assert!(bench.tasks("InspectImage").is_empty());
    for kind in ["Ready", "UpToDate"] {
        let (says, message) = condition(&bench, kind);
        assert_eq!(says, "False/NotSupported");
        assert!(message.contains("is too long"), "{message}");
    }
}

#[tokio::test]
async fn a_pin_to_a_version_that_nodes_pull_ends_with_the_former_one() {
    let mut bench = with_holders(&["n1", "n2"], &["n1", "n2"]).await;
    moves_to(&mut bench, "1", 'b').await;
    update(&mut bench, json!({ "digest": digest('b') }));
    pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b a! >b", "n2 does not have it");
    assert_eq!(up_to_date(&bench), "False/Pulling");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
    update(&mut bench, json!({ "digest": null }));
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b a! >a");
    pull_ends(&mut bench, "n2", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
}

#[tokio::test]
async fn a_pin_to_a_former_version_that_no_node_has_is_read_again() {
    let mut bench = with_first(&["n1"], json!({})).await;
    comes_into_use(&mut bench, "1", 'b').await;
    update(&mut bench, json!({ "digest": digest('a') }));
    settle(&mut bench).await.ok();
    let task = bench.task("InspectImage");
    assert_eq!(task["spec"]["image"], json!(named('a')));
    let gone = json!({ "state": "Error", "message": "answered 404" });
    ends(&mut bench, &task, gone);
    settle(&mut bench).await.ok();
    assert_eq!(condition(&bench, "Ready").0, "False/NotReady");
    bench.machine(json!({}));
    bench.settle().await.ok();
    let image = bench.condition("VirtualMachineImageReady").unwrap();
    assert_eq!(image.message, "image debian is not ready: answered 404");
}

#[tokio::test]
async fn a_tag_that_moves_faster_than_nodes_pull_reaches_machines() {
    let mut bench = with_first(&["n1"], json!({ "schedule": "*/5 * * * *" })).await;
    bench.forward(HOUR);
    pass(&mut bench).await.ok();
    finds(&mut bench, 'b');
    settle(&mut bench).await.ok();
    assert_eq!(pulling(&bench, 'b'), ["n1"]);
    bench.forward(600);
    settle(&mut bench).await.ok();
    assert!(
        bench.tasks("InspectImage").is_empty(),
        "the pull comes first"
    );
    pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
    assert_eq!(check(&bench)["spec"]["nodeName"], "n1", "it is due by now");
}

#[tokio::test]
async fn a_node_that_refuses_a_version_is_not_asked_again_for_an_hour_and_another_one_pulls_it() {
    let mut bench = with_first(&["n1", "n2"], json!({})).await;
    moves_to(&mut bench, "1", 'b').await;
    let first = pulling(&bench, 'b');
    assert_eq!(first.len(), 1, "{first:?}");
    pull_ends(&mut bench, &first[0], 'b', "Error");
    settle(&mut bench).await.ok();
    assert_eq!(up_to_date(&bench), "False/PullFailed");
    bench.forward(300);
    settle(&mut bench).await.ok();
    let task = bench.task("PullImage");
    assert_eq!(task["status"]["state"], "Error", "not repeated");
    bench.forward(300);
    settle(&mut bench).await.ok();
    let second = pulling(&bench, 'b');
    assert_eq!(second.len(), 1);
    assert_ne!(second, first);
    pull_ends(&mut bench, &second[0], 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
}

#[tokio::test]
async fn a_clock_that_was_ahead_when_a_version_was_found_does_not_hold_it_back() {
    let mut bench = with_first(&["n1", "n2"], json!({})).await;
    bench.edit(IMAGES, "debian", json!({ "spec": { "prePull": {} } }));
    settle(&mut bench).await.ok();
    bench.forward(1000 * HOUR);
    moves_to(&mut bench, "1", 'b').await;
    bench.forward(-1000 * HOUR);
    pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b a! >a");
    bench.forward(HOUR);
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
}

#[tokio::test]
async fn a_version_that_no_node_of_the_former_one_pulls_in_an_hour_is_pulled_by_another() {
    let mut bench = with_holders(&["n1", "n2"], &["n1"]).await;
    moves_to(&mut bench, "1", 'b').await;
    pull_ends(&mut bench, "n1", 'b', "Error");
    bench.forward(HOUR - 1);
    settle(&mut bench).await.ok();
    assert_eq!(pulling(&bench, 'b'), ["n1"]);
    bench.forward(1);
    settle(&mut bench).await.ok();
    assert_eq!(pulling(&bench, 'b'), ["n1", "n2"]);
    pull_ends(&mut bench, "n2", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
}

#[tokio::test]
async fn the_nodes_that_the_owner_names_are_not_replaced_by_others() {
    let mut bench = with_first(&["n1", "n2"], json!({})).await;
    let label = json!({ "metadata": { "labels": { "pool": "db" } } });
    bench.edit(NODES, "n1", label);
    let wanted = json!({ "spec": { "prePull": { "nodeSelector": { "pool": "db" } } } });
    bench.edit(IMAGES, "debian", wanted);
    settle(&mut bench).await.ok();
    pull_ends(&mut bench, "n1", 'a', "Success");
    settle(&mut bench).await.ok();
    moves_to(&mut bench, "1", 'b').await;
    pull_ends(&mut bench, "n1", 'b', "Error");
    bench.forward(HOUR);
    settle(&mut bench).await.ok();
    assert_eq!(pulling(&bench, 'b'), ["n1"], "repeated");
    assert_eq!(versions(&bench), "b a! >a");
}

#[tokio::test]
async fn a_pinned_version_that_a_node_has_stays_in_the_list_when_the_tag_moves() {
    let mut bench = with_holders(&["n1", "n2"], &["n1", "n2"]).await;
    moves_to(&mut bench, "1", 'b').await;
    update(&mut bench, json!({ "digest": digest('b') }));
    pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    moves_to(&mut bench, "2", 'c').await;
    assert_eq!(versions(&bench), "c b! a! >b");
}

#[tokio::test]
async fn a_pinned_version_that_nodes_pull_for_the_update_is_not_pulled_by_the_pre_pull_too() {
    let mut bench = with_pre_pull().await;
    moves_to(&mut bench, "1", 'b').await;
    update(&mut bench, json!({ "digest": digest('b') }));
    settle(&mut bench).await.ok();
    pull_ends(&mut bench, "n1", 'b', "Error");
    settle(&mut bench).await.ok();
    let found = status(&bench);
    assert_eq!(found["prePull"], found["update"]["pulls"]);
    assert_eq!(found["prePull"]["failed"], 1, "{found}");
    assert_eq!(found["prePull"]["pulling"], 1, "{found}");
    pull_ends(&mut bench, "n2", 'b', "Success");
    bench.forward(HOUR);
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
    assert_eq!(pulling(&bench, 'b'), ["n1"], "now by spec.prePull");
}

#[tokio::test]
async fn a_pull_that_fails_again_in_the_same_way_is_reported_once() {
    let mut bench = with_holders(&["n1"], &["n1"]).await;
    moves_to(&mut bench, "1", 'b').await;
    pull_fails(&mut bench, "n1").await;
    assert_eq!(up_to_date(&bench), "False/PullFailed");
    assert_eq!(bench.events(), ["VersionFound", "PullFailed"]);
    let reported = status(&bench);
    for _ in 0..3 {
        bench.forward(60);
        settle(&mut bench).await.ok();
        let task = bench.task("PullImage");
        assert!(task["status"].is_null(), "it is repeated: {task}");
        assert_eq!(status(&bench), reported);
        pull_fails(&mut bench, "n1").await;
        assert_eq!(status(&bench), reported);
    }
    assert_eq!(bench.events(), Vec::<String>::new());
    bench.forward(60);
    settle(&mut bench).await.ok();
    pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
}

#[tokio::test]
async fn a_pull_that_is_repeated_comes_before_the_next_check() {
    let mut bench = with_first(&["n1"], json!({ "schedule": "*/5 * * * *" })).await;
    bench.forward(HOUR);
    pass(&mut bench).await.ok();
    finds(&mut bench, 'b');
    settle(&mut bench).await.ok();
    pull_fails(&mut bench, "n1").await;
    bench.forward(60);
    settle(&mut bench).await.ok();
    assert!(
        bench.task("PullImage")["status"].is_null(),
        "it is repeated"
    );
    bench.forward(600);
    settle(&mut bench).await.ok();
    assert!(bench.tasks("InspectImage").is_empty());
    pull_fails(&mut bench, "n1").await;
    pass(&mut bench).await.ok();
    check(&bench);
}

#[tokio::test]
async fn pulls_of_two_nodes_that_fail_in_turn_show_one_of_them() {
    let mut bench = with_holders(&["n1", "n2"], &["n1", "n2"]).await;
    moves_to(&mut bench, "1", 'b').await;
    assert_eq!(pulling(&bench, 'b'), ["n1", "n2"]);
    pull_fails(&mut bench, "n1").await;
    bench.forward(30);
    pull_fails(&mut bench, "n2").await;
    let reported = status(&bench);
    assert_eq!(
        reported["update"]["pulls"]["message"],
        "node n1: answered 503"
    );
    for _ in 0..3 {
        for node in ["n1", "n2"] {
            bench.forward(30);
            settle(&mut bench).await.ok();
            pull_fails(&mut bench, node).await;
            assert_eq!(status(&bench), reported);
        }
    }
}

/// A task that is restored would be run again.
#[tokio::test]
async fn backup_tools_leave_checks_and_pulls_out() {
    let mut bench = cluster(&["n1"], json!({}));
    pass(&mut bench).await.ok();
    let label = |task: &Value| task["metadata"]["labels"][EXCLUDE_FROM_BACKUP].clone();
    assert_eq!(label(&check(&bench)), "true");
    finds(&mut bench, 'a');
    settle(&mut bench).await.ok();
    moves_to(&mut bench, "1", 'b').await;
    assert_eq!(label(&bench.task("PullImage")), "true");
}
