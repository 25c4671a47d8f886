//! The copies that exports send: who makes them, and when they go.
//!
//! Invariant: disks are real files, the hypervisor is a fake.
//! Failure: a test prints what did not end as it should.

use super::*;

#[tokio::test]
async fn the_client_that_comes_last_is_served() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let exports = exports(&node);
    let mut first = fetch(&exports, &[]);
    read(&mut first, 1).await.unwrap();
    whole(&exports).await;
    let ended = read(&mut first, usize::MAX).await.unwrap_err();
    assert_eq!(ended.code(), Code::Aborted);
}

#[tokio::test]
async fn a_client_that_is_served_keeps_its_copy_when_another_one_is_complete() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let exports = exports(&node);
    let mut messages = fetch(&exports, &[]);
    let begun = read(&mut messages, 1).await.unwrap();
    exports.forget(own()).await.unwrap();
    assert_eq!(copies(&exports), 1);
    let rest = read(&mut messages, usize::MAX).await.unwrap();
    assert_eq!((begun.bytes.len() + rest.bytes.len()) as u64, begun.size);
    exports.forget(own()).await.unwrap();
    assert_eq!(copies(&exports), 0);
}

#[tokio::test]
async fn a_copy_is_removed_also_when_the_caller_leaves() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let exports = exports(&node);
    whole(&exports).await;
    let turn = exports.0.turns.lock(&own()).await;
    let cut = tokio::time::timeout(Duration::ZERO, exports.forget(own()));
    assert!(cut.await.is_err(), "it waits for its turn");
    assert_eq!(copies(&exports), 1);
    drop(turn);
    await_copies(&exports, 0).await;
}

#[tokio::test]
async fn a_copy_that_could_not_be_removed_goes_later() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let exports = exports(&node);
    whole(&exports).await;
    let path = exports.known(own()).unwrap().path;
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    exports.forget(own()).await.unwrap_err();
    tokio::time::pause();
    tokio::time::sleep(KEPT * 3 / 2).await;
    assert_eq!(copies(&exports), 1);
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    tokio::time::sleep(2 * KEPT).await;
    await_copies(&exports, 0).await;
}

#[tokio::test]
async fn a_copy_that_is_gone_is_made_again() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let exports = exports(&node);
    let first = whole(&exports).await.bytes;
    std::fs::remove_file(exports.known(own()).unwrap().path).unwrap();
    assert!(whole(&exports).await.bytes == first);
}

#[tokio::test]
async fn a_client_that_never_reads_is_left_and_its_copy_goes() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let exports = exports(&node);
    let mut messages = fetch(&exports, &[]);
    read(&mut messages, 1).await.unwrap();
    assert_eq!(exports.0.places.available_permits(), MOST - 1);
    tokio::time::pause();
    tokio::time::sleep(2 * CLIENT_TIMEOUT).await;
    assert_eq!(exports.0.places.available_permits(), MOST);
    assert_eq!(copies(&exports), 1, "the client may come back");
    let ended = read(&mut messages, usize::MAX).await.unwrap_err();
    assert!(ended.message().contains("has read nothing"), "{ended}");
    tokio::time::sleep(2 * KEPT).await;
    await_copies(&exports, 0).await;
}

#[tokio::test]
async fn a_restart_leaves_no_copy() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let first = exports(&node);
    let mut messages = fetch(&first, &[]);
    let part = read(&mut messages, 1).await.unwrap();
    assert_eq!(copies(&first), 1);
    let second = exports(&node);
    assert_eq!(copies(&second), 0);
    // The disk is as it was, so that the client continues.
    let rest = read(&mut fetch(&second, &part.bytes), usize::MAX).await;
    assert_eq!(rest.unwrap().offset, part.bytes.len() as u64);
}
