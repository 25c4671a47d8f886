//! A file system of the state that is full, or takes no writes.
//!
//! Invariant: journal and CNI cache lie on a small tmpfs of the test's own, which goes with the
//! scratch directory.
//! Failure: what is left of the network, and the program's log.

use std::io::Write as _;
use std::path::Path;

use netns::Namespace;
use nix::mount::{MsFlags, mount};
use tapmanager::client::Error;
use tapmanager::wire::ErrorCode;

use crate::node::{Node, pod, real_plugins};

/// A node whose state lies in a file system of a few pages.
async fn node_with_small_state() -> Node {
    let mut node = Node::new().await;
    let state = node.scratch.path().join("state");
    std::fs::create_dir(&state).unwrap();
    mount_small(&state, MsFlags::empty());
    for part in ["journal", "cache"] {
        std::fs::create_dir(state.join(part)).unwrap();
        std::os::unix::fs::symlink(state.join(part), node.scratch.path().join(part)).unwrap();
    }
    node.configure(&real_plugins(node.scratch.path())).await;
    node.launch().await;
    node
}

fn mount_small(state: &Path, flags: MsFlags) {
    let kind = Some("tmpfs");
    let size = Some("size=256k");
    mount(kind, state, kind, flags, size).unwrap();
}

/// Fills the state's file system to its last byte.
fn fill(node: &Node) {
    let mut filler = std::fs::File::create(node.scratch.path().join("state/filler")).unwrap();
    while filler.write(&[0; 512]).is_ok() {}
    while filler.write(&[0]).is_ok() {}
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_full_disk_keeps_no_network_from_being_removed() {
    let mut node = node_with_small_state().await;
    for id in ["one", "two", "three"] {
        node.client().add(pod(id)).await.unwrap();
    }
    fill(&node);
    let refused = node.client().add(pod("four")).await;
    assert!(
        matches!(&refused, Err(Error::Refused(e)) if e.code == ErrorCode::System),
        "{refused:?}"
    );
    let state = node.scratch.path().join("state");
    assert!(!state.join("journal/four.part").exists());
    node.client().del("one").await.unwrap();
    // What the first removal gave back is taken again.
    fill(&node);
    node.client().del("two").await.unwrap();
    fill(&node);
    node.kill().await;
    let three = node.scratch.path().join("pods/vmlet-three");
    Namespace::delete(&three).await.unwrap();
    node.launch().await;
    node.client().del("three").await.unwrap();
    assert!(
        node.log().contains("removal of a network not recorded"),
        "{}",
        node.log()
    );
    assert_eq!(node.client().list().await.unwrap(), Vec::<String>::new());
    node.becomes_clean().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_that_takes_no_writes_keeps_records_and_no_network() {
    let mut node = node_with_small_state().await;
    let network = node.client().add(pod("one")).await.unwrap();
    let two = node.client().add(pod("two")).await.unwrap();
    // The kernel refuses this while a file is open for writing.
    node.kill().await;
    let state = node.scratch.path().join("state");
    mount_small(&state, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
    node.launch().await;
    node.client().del("one").await.unwrap();
    assert!(Namespace::open(&network.netns).unwrap().is_none());
    assert_eq!(node.client().list().await.unwrap(), ["one", "two"]);
    let gone = node.client().get("one").await;
    assert!(
        matches!(&gone, Err(Error::Refused(e)) if e.code == ErrorCode::NotFound),
        "{gone:?}"
    );

    // A restart meets an entry without the mark.
    node.kill().await;
    node.launch().await;
    node.logged("records of a removed network kept").await;
    assert_eq!(node.client().get("two").await.unwrap(), two);
    node.client().del("two").await.unwrap();
    assert!(Namespace::open(&two.netns).unwrap().is_none());

    mount_small(&state, MsFlags::MS_REMOUNT);
    let mut removed = node.client().gc(Vec::new()).await.unwrap();
    removed.sort_unstable();
    assert_eq!(removed, ["one", "two"]);
    assert_eq!(node.client().list().await.unwrap(), Vec::<String>::new());
    node.becomes_clean().await;
}
