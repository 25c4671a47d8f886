//! What a power cut may undo of the records of images.
//!
//! Invariant: an image that was reported stays. What a client has uploaded is nowhere else.
//! Failure: the level at which the record was written.

use crate::images::Upload;
use crate::testkit::Node;

/// At this level the log is on the disk before the answer.
const FULL: i64 = 2;

/// Notes the level of each such change of a table from now on.
async fn watch(node: &Node, changes: &[&str]) {
    let mut look = "CREATE TEMP TABLE seen (level);".to_owned();
    for (n, change) in changes.iter().enumerate() {
        look.push_str(&format!(
            "CREATE TEMP TRIGGER watch{n} AFTER {change}
              BEGIN INSERT INTO seen SELECT synchronous FROM pragma_synchronous; END;"
        ));
    }
    let made = node.db.write(move |t| t.execute_batch(&look));
    made.await.unwrap();
}

/// The changes that were seen, and their lowest level.
async fn seen(node: &Node) -> (i64, i64) {
    let select = "SELECT count(*), min(level) FROM seen";
    let seen = node
        .db
        .write(move |t| t.query_row(select, [], |row| Ok((row.get(0)?, row.get(1)?))));
    seen.await.unwrap()
}

#[tokio::test]
async fn a_power_cut_undoes_no_image_that_was_reported() {
    let node = Node::new().await;
    let image = node.image("disk");
    node.images.remove(&image).await.unwrap();
    watch(&node, &["INSERT ON main.images"]).await;
    node.images.pull(&image).await.unwrap();
    assert_eq!(seen(&node).await, (1, FULL));
}

/// The client does not send it again, and has no record but the answer.
#[tokio::test]
async fn a_power_cut_undoes_no_upload_of_what_was_there_already() {
    let node = Node::new().await;
    let name = node.image("disk");
    let image = node.images.pull(&name).await.unwrap();
    watch(
        &node,
        &["INSERT ON main.image_names", "UPDATE ON main.images"],
    )
    .await;
    let uploaded = "vmlet.dev/upload.invalid/default/web:1";
    let begun = node.images.upload(uploaded, image.size, image.digest);
    assert!(matches!(begun.await.unwrap(), Upload::Present(_)));
    let (changes, least) = seen(&node).await;
    assert!(changes > 1, "{changes}");
    assert_eq!(least, FULL);
}
