//! `node images` and `node pull`.
//!
//! Invariant: a pull ends with its command.
//! Failure: none.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

#[tokio::test]
async fn images_and_pulls_in_progress_are_listed_in_every_format() {
    let node = Node::start(Scenario::default());
    let table = node.ctl(&["node", "images"]).await;
    insta::assert_snapshot!(table.out, @"
    NAME                    DIGEST         SIZE      STATE        AGE  LAST-USED  USERS
    vmlet.dev/big:1         -              20 B      pulling 45%  -    -          0
    vmlet.dev/hello:latest  feedfeedfeedf  1.00 MiB  ready        -    -          1
    ");
    assert_eq!(node.ctl(&["images"]).await.out, table.out);
    let wide = node.ctl(&["images", "-o", "wide"]).await;
    insta::assert_snapshot!(wide.out, @"
    NAME                    DIGEST         SIZE      STATE        AGE  LAST-USED  USERS  FORMAT  VIRTUAL-SIZE  USED-BY
    vmlet.dev/big:1         -              20 B      pulling 45%  -    -          0      -       -             -
    vmlet.dev/hello:latest  feedfeedfeedf  1.00 MiB  ready        -    -          1      raw     2.00 MiB      pod a/b
    ");
    let yaml = node.ctl(&["images", "-o", "yaml"]).await;
    let json = node.ctl(&["images", "-o", "json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json[0]["pull"]["receivedBytes"], 9);
    assert_eq!(json[1]["users"][0], "pod a/b");
    let yaml: serde_json::Value = serde_saphyr::from_str(&yaml.out).unwrap();
    assert_eq!(yaml, json);
}

#[tokio::test]
async fn a_pull_prints_the_id_or_the_sentence_of_the_daemon() {
    let node = Node::start(Scenario::default());
    let pulled = node.ctl(&["node", "pull", "vmlet.dev/hello"]).await;
    let expected = (Some(0), "sha256:feed\n");
    assert_eq!((pulled.code, pulled.out.as_str()), expected);
    assert_eq!(node.fake.changes(), ["PullImage"]);

    let node = Node::start(Scenario {
        refuse: Some("PullImage"),
        ..Scenario::default()
    });
    let refused = node.ctl(&["pull", "vmlet.dev/hello"]).await;
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""));
    let sentence = "error: PullImage: PullImage is out of order (Internal)";
    assert!(refused.err.contains(sentence), "{}", refused.err);
}

#[tokio::test]
async fn a_pull_shows_its_percentage_and_ends_with_an_interrupt() {
    let node = Node::start(Scenario {
        endless_pull: true,
        ..Scenario::default()
    });
    let child = node.spawn(&["pull", "vmlet.dev/hello"]);
    // The second request follows the output of the first reply.
    node.fake.called_times("ImageStatus verbose", 2).await;
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
    let output = finished(child).await;
    assert_eq!(output.code, Some(130), "{output:?}");
    assert_eq!(output.err.matches("pull     50%").count(), 1, "{output:?}");
    node.fake.called("PullImage abandoned").await;
}
