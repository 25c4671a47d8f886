//! Lists of checksums that precede their files, or are replaced by others.
//!
//! Invariant: time passes only where a test says so.
//! Failure: none of its own.

use super::*;

/// A publisher may write the list before the file that it is about.
#[tokio::test]
async fn a_file_that_follows_its_list_is_pulled_again_soon_and_then_ever_later() {
    let mut bench = with_first_file(&["n1"], &["n1"]).await;
    publishes(&mut bench, "1", 'b').await;
    let mut found = 0;
    for (seconds, is_pulled) in [
        (10, false),
        (299, false),
        (1, true),
        (309, false),
        (1, true),
    ] {
        bench.forward(seconds);
        found += seconds;
        settle(&mut bench).await.ok();
        if found == 10 {
            file_pull_ends(&mut bench, "n1", 'b', "Error");
            settle(&mut bench).await.ok();
            continue;
        }
        for task in bench.tasks("InspectImage") {
            let image = json!({ "format": "qcow2", "bootable": true, "digest": digest('b') });
            ends(
                &mut bench,
                &task,
                json!({ "state": "Success", "image": image }),
            );
            settle(&mut bench).await.ok();
        }
        let tasks = bench.tasks("PullImage");
        let is_open = tasks.iter().any(|task| task["status"]["state"].is_null());
        assert_eq!(is_open, is_pulled, "after {found} s");
        assert_eq!(up_to_date(&bench), "False/PullFailed");
        if is_open {
            file_pull_ends(&mut bench, "n1", 'b', "Error");
            settle(&mut bench).await.ok();
        }
    }
    bench.forward(620);
    settle(&mut bench).await.ok();
    file_pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
}

#[tokio::test]
async fn a_first_file_that_no_node_can_pull_is_checked_again_without_a_schedule() {
    let mut bench = published(&["n1"], json!({}));
    bench.edit(IMAGES, "debian", json!({ "spec": { "prePull": {} } }));
    pass(&mut bench).await.ok();
    lists(&mut bench, &digest('a'));
    settle(&mut bench).await.ok();
    bench.forward(300);
    settle(&mut bench).await.ok();
    assert!(bench.tasks("InspectImage").is_empty(), "a node pulls it");
    file_pull_ends(&mut bench, "n1", 'a', "Error");
    settle(&mut bench).await.ok();
    settle(&mut bench).await.ok();
    lists(&mut bench, &digest('b'));
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! >b");
    assert_eq!(nodes_of_pulls(&bench, 'b'), ["n1"]);
    file_pull_ends(&mut bench, "n1", 'b', "Success");
    bench.node_has("n1", &[file('b')]);
    settle(&mut bench).await.ok();
    bench.forward(7200);
    settle(&mut bench).await.ok();
    assert!(bench.tasks("InspectImage").is_empty(), "a node has it");
}

/// Its first version is on no node as far as the cluster shows, and the server has another one.
async fn replaced_first_file(prepare: impl FnOnce(&mut Bench)) -> Bench {
    let mut bench = published(&["n1", "n2"], json!({}));
    let pre_pull = json!({ "spec": { "prePull": { "nodeSelector": { "pulls": "yes" } } } });
    bench.edit(IMAGES, "debian", pre_pull);
    let label = json!({ "metadata": { "labels": { "pulls": "yes" } } });
    bench.edit(NODES, "n1", label);
    pass(&mut bench).await.ok();
    lists(&mut bench, &digest('a'));
    settle(&mut bench).await.ok();
    prepare(&mut bench);
    bench.forward(300);
    settle(&mut bench).await.ok();
    file_pull_ends(&mut bench, "n1", 'a', "Error");
    settle(&mut bench).await.ok();
    settle(&mut bench).await.ok();
    lists(&mut bench, &digest('b'));
    settle(&mut bench).await.ok();
    bench
}

#[tokio::test]
async fn a_first_file_that_a_machine_uses_or_a_node_may_have_stays_a_version() {
    let bench = replaced_first_file(|_| {}).await;
    assert_eq!(versions(&bench), "b! >b", "no node can have it");
    let bench = replaced_first_file(|bench| lists_a_part(bench, "n2", &[])).await;
    assert_eq!(versions(&bench), "b a! >a");
    assert_eq!(nodes_of_pulls(&bench, 'b'), ["n1"]);
    let used = json!({ "status": { "usedSince": "2027-01-15T08:00:00Z" } });
    let bench = replaced_first_file(|bench| bench.edit(IMAGES, "debian", used)).await;
    assert_eq!(versions(&bench), "b a! >a");
}

#[tokio::test]
async fn an_edited_list_is_read_also_where_an_earlier_version_made_the_last_check() {
    let mut bench = with_first_file(&["n1"], &["n1"]).await;
    let earlier = json!({ "status": { "update": { "observedChecksumURL": null } } });
    bench.edit(IMAGES, "debian", earlier);
    settle(&mut bench).await.ok();
    assert_eq!(status(&bench)["update"]["observedChecksumURL"], LIST);
    assert!(bench.tasks("InspectImage").is_empty());
    let other = "https://images.example/pool/SHA512SUMS";
    update(&mut bench, json!({ "checksumURL": other }));
    settle(&mut bench).await.ok();
    assert_eq!(check(&bench)["spec"]["imageChecksumURL"], other);
}

#[tokio::test]
async fn an_edited_list_is_read_at_once() {
    let mut bench = with_first_file(&["n1"], &["n1"]).await;
    assert_eq!(status(&bench)["update"]["observedChecksumURL"], LIST);
    let other = "https://images.example/pool/SHA512SUMS";
    update(&mut bench, json!({ "checksumURL": other }));
    settle(&mut bench).await.ok();
    assert_eq!(check(&bench)["spec"]["imageChecksumURL"], other);
    lists(&mut bench, &digest('b'));
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b a! >a");
    assert_eq!(status(&bench)["update"]["observedChecksumURL"], other);
    assert!(bench.tasks("InspectImage").is_empty());
}
