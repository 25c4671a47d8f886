//! STATUS and GC: asking before, and cleaning up after.
//!
//! Invariant: plugins receive every valid attachment before they may collect.
//! Failure: an attachment missing from the list that plugins get.

use cni::{AttachmentId, ErrorKind, Failure, NetworkConfig};
use serde_json::{Value, json};

use crate::scratch::{Scratch, WORKS, network, parse};

fn id(container: &str) -> AttachmentId {
    AttachmentId {
        container_id: container.into(),
        ifname: "eth0".into(),
    }
}

fn containers(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap();
    assert!(list.iter().all(|entry| entry["ifname"] == "eth0"));
    list.iter()
        .map(|entry| entry["containerID"].as_str().unwrap())
        .collect()
}

async fn attach(scratch: &Scratch, network: &NetworkConfig, ids: &[&str]) {
    let runtime = scratch.runtime();
    for container in ids {
        runtime
            .add(network, &scratch.attachment(container))
            .await
            .unwrap();
    }
    scratch.forget_log();
}

#[tokio::test]
async fn gc_detaches_unlisted_networks_and_passes_the_rest_to_plugins() {
    let scratch = Scratch::new();
    scratch.plugin("first", WORKS);
    let network = network("1.1.0", &["first"]);
    attach(&scratch, &network, &["c1", "c2", "c3"]).await;
    let outcome = scratch
        .runtime()
        .gc(Some(&network), &[id("c2")])
        .await
        .unwrap();
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
    let removed: Vec<&str> = outcome
        .removed
        .iter()
        .map(|r| r.id.container_id.as_str())
        .collect();
    assert_eq!(removed, ["c1", "c3"]);
    assert_eq!(scratch.log(), ["DEL first", "DEL first", "GC first"]);
    assert_eq!(scratch.cache(), ["net-c2-eth0"]);
    let input = scratch.input("first", "GC");
    assert_eq!(containers(&input["cni.dev/valid-attachments"]), ["c2"]);
    assert_eq!(
        input["cni.dev/attachments"],
        input["cni.dev/valid-attachments"]
    );
    assert_eq!(input["name"], "net");
    assert!(
        !scratch
            .variables("first", "GC")
            .contains_key("CNI_CONTAINERID")
    );
}

#[tokio::test]
async fn attachments_of_neighbours_are_valid() {
    let scratch = Scratch::new();
    scratch.plugin("first", WORKS);
    let network = network("1.1.0", &["first"]);
    let other = Scratch::new();
    other.plugin("first", WORKS);
    attach(&other, &network, &["theirs"]).await;
    let elsewhere = parse(&json!({"cniVersion": "1.1.0", "name": "elsewhere", "type": "first"}));
    attach(&other, &elsewhere, &["unrelated"]).await;
    attach(&scratch, &network, &["ours"]).await;

    let runtime = scratch
        .runtime()
        .with_neighbours([other.path("cache"), scratch.path("none")]);
    let outcome = runtime.gc(Some(&network), &[id("ours")]).await.unwrap();
    assert!(outcome.errors.is_empty() && outcome.removed.is_empty());
    let input = scratch.input("first", "GC");
    assert_eq!(
        containers(&input["cni.dev/valid-attachments"]),
        ["ours", "theirs"]
    );
    assert_eq!(other.cache().len(), 2, "theirs to remove");

    std::fs::write(other.path("cache/results/unreadable"), "{").unwrap();
    scratch.forget_log();
    let outcome = runtime.gc(Some(&network), &[id("ours")]).await.unwrap();
    assert_eq!(outcome.errors.len(), 1);
    assert!(
        scratch.log().is_empty(),
        "which attachments are valid is not known, so no plugin collects"
    );
}

#[tokio::test]
async fn what_cannot_be_detached_is_reported_and_stays_valid() {
    let scratch = Scratch::new();
    scratch.plugin(
        "first",
        &format!("[ $CNI_COMMAND$CNI_CONTAINERID != DELc1 ] || exit 1\n{WORKS}"),
    );
    let network = network("1.1.0", &["first"]);
    attach(&scratch, &network, &["c1", "c2"]).await;
    let outcome = scratch.runtime().gc(Some(&network), &[]).await.unwrap();
    assert_eq!((outcome.removed.len(), outcome.errors.len()), (1, 1));
    let input = scratch.input("first", "GC");
    assert_eq!(containers(&input["cni.dev/valid-attachments"]), ["c1"]);
}

#[tokio::test]
async fn gc_is_not_called_where_it_is_disabled_or_unknown() {
    let scratch = Scratch::new();
    scratch.plugin("first", WORKS);
    let shared = parse(&json!({
        "cniVersion": "1.1.0", "name": "net", "disableGC": true, "plugins": [{"type": "first"}],
    }));
    attach(&scratch, &shared, &["c1"]).await;
    let runtime = scratch.runtime();
    runtime.gc(Some(&shared), &[id("c1")]).await.unwrap();
    runtime
        .gc(Some(&network("1.0.0", &["first"])), &[id("c1")])
        .await
        .unwrap();
    assert!(scratch.log().is_empty());
    let outcome = runtime.gc(None, &[]).await.unwrap();
    assert_eq!(
        outcome.removed.len(),
        1,
        "our own is taken down even without a network"
    );
}

#[tokio::test]
async fn status_calls_plugins_that_support_it() {
    let scratch = Scratch::new();
    let full =
        "[ $CNI_COMMAND != STATUS ] || { echo '{\"code\":50,\"msg\":\"pool is empty\"}'; exit 1; }";
    scratch.plugin("first", WORKS);
    scratch.plugin("full", full);
    let runtime = scratch.runtime();
    runtime
        .status(&network("1.0.0", &["first", "full"]))
        .await
        .unwrap();
    assert!(scratch.log().is_empty());
    runtime.status(&network("1.1.0", &["first"])).await.unwrap();
    let error = runtime
        .status(&network("1.1.0", &["first", "full"]))
        .await
        .unwrap_err();
    assert_eq!(
        scratch.log(),
        ["STATUS first", "STATUS first", "STATUS full"]
    );
    let cni::Error::Plugin(error) = error else {
        panic!("{error:?}")
    };
    assert!(matches!(error.failure, Failure::Reported { code: 50, .. }));
    let missing = runtime
        .status(&network("1.0.0", &["first", "gone"]))
        .await
        .unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotReady);
}
