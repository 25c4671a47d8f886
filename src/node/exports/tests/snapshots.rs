//! Exports of snapshots, of a machine that has its disk.
//!
//! Invariant: as of the other exports.
//! Failure: a test names what was sent, kept or allowed.

use super::*;

fn snapshot(n: u32) -> Source {
    Source {
        vm: uid(1),
        state: DiskState::Snapshot(uid(n)),
    }
}

fn fetch_snapshot(exports: &Exports, n: u32, received: &[u8]) -> Messages {
    let received = received_of(received);
    let requested = Requested::Snapshot(uid(1), uid(n));
    stream(
        exports.clone(),
        requested,
        received,
        CancellationToken::new(),
    )
}

async fn whole_of(exports: &Exports, n: u32) -> Result<Fetched, Status> {
    read(&mut fetch_snapshot(exports, n, &[]), usize::MAX).await
}

/// A disk with pattern 7 at snapshot 10 and 8 since, which a machine has.
async fn with_snapshot(node: &Node) {
    disk(node, true, 7).await;
    node.disks.take_snapshot(uid(1), uid(10)).await.unwrap();
    fill(node, 8);
    let container = podspec::ContainerId::generate();
    node.disks.take(uid(1), &container).await.unwrap();
}

fn has_pattern(file: &[u8], pattern: u8) -> bool {
    let mut sectors = file.chunks_exact(512);
    sectors.any(|sector| sector.iter().all(|byte| *byte == pattern))
}

#[tokio::test]
async fn a_client_gets_a_snapshot_of_a_machine_that_runs_and_continues_it() {
    let node = Node::new().await;
    with_snapshot(&node).await;
    let exports = exports(&node);
    let mut messages = fetch_snapshot(&exports, 10, &[]);
    let mut part = read(&mut messages, 3 << 20).await.unwrap().bytes;
    drop(messages);
    let rest = read(&mut fetch_snapshot(&exports, 10, &part), usize::MAX).await;
    let rest = rest.unwrap();
    assert_eq!(rest.offset, part.len() as u64);
    part.extend(&rest.bytes);
    assert!(has_pattern(&part, 7) && !has_pattern(&part, 8));
    assert_eq!(copies(&exports), 1, "each call made its own");
    // That of the disk is another one, and is refused while the machine has it.
    let running = refusal(&exports).await;
    assert_eq!(running.code(), Code::FailedPrecondition);
    exports.forget(own()).await.unwrap();
    assert_eq!(copies(&exports), 1);
    exports.forget(snapshot(10)).await.unwrap();
    assert_eq!(copies(&exports), 0);
    let claimed = node.disks.hold_snapshot(uid(1), uid(10)).await;
    claimed.expect("no layer stays claimed");
}

#[tokio::test]
async fn a_snapshot_of_another_machine_is_not_found() {
    let node = Node::new().await;
    with_snapshot(&node).await;
    let exports = exports(&node);
    for (vm, taken) in [(1, 11), (2, 10)] {
        let requested = Requested::Snapshot(uid(vm), uid(taken));
        let mut messages = stream(exports.clone(), requested, None, CancellationToken::new());
        let refused = read(&mut messages, usize::MAX).await;
        assert_eq!(refused.unwrap_err().code(), Code::NotFound, "{vm} {taken}");
    }
    assert_eq!(copies(&exports), 0);
}

#[tokio::test]
async fn the_deletion_of_a_snapshot_ends_its_export_and_takes_the_copy_away() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    node.disks.take_snapshot(uid(1), uid(10)).await.unwrap();
    let exports = exports(&node);
    let mut messages = fetch_snapshot(&exports, 10, &[]);
    read(&mut messages, 1).await.unwrap();
    // What is sent holds no layer.
    let deleted = node.disks.delete_snapshot(uid(1), uid(10), |_| {}).await;
    deleted.unwrap();
    let ended = read(&mut messages, usize::MAX).await.unwrap_err();
    assert_eq!(ended.code(), Code::NotFound);
    assert!(ended.message().contains("is deleted"), "{ended}");
    await_copies(&exports, 0).await;
    whole(&exports).await;
}

#[tokio::test]
async fn a_disk_and_its_snapshots_are_sent_at_the_same_time() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    node.disks.take_snapshot(uid(1), uid(10)).await.unwrap();
    fill(&node, 8);
    let exports = exports(&node);
    let mut messages = fetch_snapshot(&exports, 10, &[]);
    let begun = read(&mut messages, 1).await.unwrap();
    let now = whole(&exports).await;
    assert!(has_pattern(&now.bytes, 8) && !has_pattern(&now.bytes, 7));
    let rest = read(&mut messages, usize::MAX).await.unwrap();
    assert_eq!((begun.bytes.len() + rest.bytes.len()) as u64, begun.size);
    let again = whole_of(&exports, 10).await.unwrap();
    assert_eq!(again.digest, rest.digest);
}

#[tokio::test]
async fn the_agent_gets_no_snapshot() {
    let node = Node::new().await;
    let service = service(&node).await;
    let request = || {
        Request::new(v1::ExportSnapshotRequest {
            vm_uid: uid(1).to_string(),
            snapshot_uid: uid(10).to_string(),
            ..v1::ExportSnapshotRequest::default()
        })
    };
    let refused = service.export_snapshot(request()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
    let own = |mut request: Request<v1::ExportSnapshotRequest>| {
        request.extensions_mut().insert(ours.connect_info());
        request
    };
    service.export_snapshot(own(request())).await.unwrap();
    let mut unnamed = own(request());
    unnamed.get_mut().snapshot_uid.clear();
    let refused = service.export_snapshot(unnamed).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}
