//! Half-made attachments: what a failed or interrupted ADD leaves, and who takes it down.
//!
//! Invariant: a plugin that has run its ADD gets a DEL, now or later.
//! Failure: a call that is missing from the log.

use cni::{Error, ErrorKind, Failure};

use crate::scratch::{Scratch, WORKS, network};

#[tokio::test]
async fn a_failed_add_is_undone_from_the_end_of_the_chain() {
    let scratch = Scratch::new();
    scratch.plugin("first", WORKS);
    scratch.plugin(
        "second",
        "[ $CNI_COMMAND = DEL ] || { echo '{\"code\":100,\"msg\":\"no\"}'; exit 1; }",
    );
    scratch.plugin("third", WORKS);
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    let network = network("1.0.0", &["first", "second", "third"]);
    let error = runtime.add(&network, &attachment).await.unwrap_err();
    let Error::Plugin(error) = error else {
        panic!("{error:?}")
    };
    assert_eq!(error.plugin, "second");
    assert!(matches!(error.failure, Failure::Reported { code: 100, .. }));
    let order = [
        "ADD first",
        "ADD second",
        "DEL third",
        "DEL second",
        "DEL first",
    ];
    assert_eq!(scratch.log(), order);
    assert!(scratch.input("first", "DEL").get("prevResult").is_none());
    assert!(scratch.cache().is_empty());
}

#[tokio::test]
async fn the_cache_knows_the_attachment_before_the_first_plugin_runs() {
    let scratch = Scratch::new();
    scratch.plugin(
        "first",
        &format!("cp $HERE/cache/results/net-c1-eth0 $HERE/seen\n{WORKS}"),
    );
    let runtime = scratch.runtime();
    runtime
        .add(&network("1.0.0", &["first"]), &scratch.attachment("c1"))
        .await
        .unwrap();
    let seen = std::fs::read(scratch.path("seen")).unwrap();
    let seen: serde_json::Value = serde_json::from_slice(&seen).unwrap();
    assert_eq!(seen["containerId"], "c1");
    assert!(seen.get("result").is_none());
}

#[tokio::test]
async fn what_could_not_be_undone_stays_and_is_taken_down_before_the_next_add() {
    let scratch = Scratch::new();
    scratch.plugin("first", WORKS);
    scratch.plugin("second", "exit 1");
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    let network = network("1.0.0", &["first", "second"]);
    let error = runtime.add(&network, &attachment).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Plugin);
    // The plugin before the broken one has had its turn all the same.
    assert_eq!(
        scratch.log(),
        ["ADD first", "ADD second", "DEL second", "DEL first"]
    );
    let cached = runtime.cached().await.unwrap();
    assert!(cached.len() == 1 && !cached[0].complete);
    assert_eq!(
        runtime.check(&attachment).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );

    scratch.plugin("second", WORKS);
    scratch.forget_log();
    runtime.add(&network, &attachment).await.unwrap();
    assert_eq!(
        scratch.log(),
        ["DEL second", "DEL first", "ADD first", "ADD second"]
    );
    assert!(runtime.cached().await.unwrap()[0].complete);
}

#[tokio::test]
async fn a_failed_delete_stops_there_and_can_be_repeated() {
    let scratch = Scratch::new();
    scratch.plugin("address", WORKS);
    scratch.plugin("rules", WORKS);
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    runtime
        .add(&network("1.0.0", &["address", "rules"]), &attachment)
        .await
        .unwrap();
    scratch.forget_log();
    scratch.plugin("rules", "exit 1");
    assert!(runtime.del(&attachment, None).await.is_err());
    // The address stays taken while rules may still point to it.
    assert_eq!(scratch.log(), ["DEL rules"]);
    assert_eq!(scratch.cache(), ["net-c1-eth0"]);
    scratch.plugin("rules", WORKS);
    runtime.del(&attachment, None).await.unwrap();
    assert_eq!(scratch.log(), ["DEL rules", "DEL rules", "DEL address"]);
    assert!(scratch.cache().is_empty());
}

#[tokio::test]
async fn a_result_that_cannot_be_kept_is_undone() {
    let scratch = Scratch::new();
    // The directory turns into something that no file can be renamed into.
    let sabotage = "rm -r $HERE/cache/results && touch $HERE/cache/results";
    scratch.plugin(
        "first",
        &format!("[ $CNI_COMMAND != ADD ] || {{ {sabotage}; }}\n{WORKS}"),
    );
    let runtime = scratch.runtime();
    let outcome = runtime
        .add(&network("1.0.0", &["first"]), &scratch.attachment("c1"))
        .await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::System);
    assert_eq!(scratch.log(), ["ADD first", "DEL first"]);
}
