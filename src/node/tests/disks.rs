//! The list of disks: what is on the node counts, whatever the database says of it.
//!
//! Invariant: real disks, and a database in a file.
//! Failure: a disk that is not listed lets an autoscaler delete its node.

use nodeapi::v1::node_server::Node as _;
use nodeapi::v1::{Disk, GetManifestRequest, ListDisksRequest, SetManifestRequest};
use podspec::VmUid;
use tonic::Code;
use tonic::transport::server::UdsConnectInfo;

use super::*;

async fn listed(service: &Service<Fake>) -> Result<Vec<Disk>, tonic::Status> {
    let answer = service.list_disks(tonic::Request::new(ListDisksRequest {}));
    Ok(answer.await?.into_inner().disks)
}

/// A node whose only disks have neither of them a record that can be read: of the first it was set
/// aside, of the second it is lost.
async fn node_with_unreadable_disks() -> Node {
    let node = Node::new().await;
    for vm in [uid(1), uid(2)] {
        node.make_disk(vm).await;
    }
    let statement = format!(
        "UPDATE vm_disks SET row = '{{}}' WHERE key = '{}'; DELETE FROM vm_disks WHERE key = '{}'",
        uid(1),
        uid(2)
    );
    let garble = move |t: &rusqlite::Transaction<'_>| t.execute_batch(&statement);
    node.db.write(garble).await.unwrap();
    let half = node.disks.file(uid(3)).with_file_name("root.new");
    std::fs::create_dir_all(half.parent().unwrap()).unwrap();
    std::fs::write(half, "half of it").unwrap();
    node.restarted().await
}

#[tokio::test]
async fn disks_without_a_readable_record_are_listed_with_the_reason() {
    let node = node_with_unreadable_disks().await;
    let mut disks = listed(&service(&node).await).await.unwrap();
    disks.sort_by(|a, b| a.vm_uid.cmp(&b.vm_uid));
    let uids: Vec<_> = disks.iter().map(|disk| disk.vm_uid.clone()).collect();
    assert_eq!(uids, [uid(1), uid(2)].map(|vm| vm.to_string()));
    for (disk, reason) in disks
        .iter()
        .zip(["table vm_disks cannot be read", "does not know it"])
    {
        assert!(disk.unreadable.contains(reason), "{disk:?}");
        // No machine can be looked up for it, so that no program takes it for one without a machine.
        assert!(disk.vm_name.is_empty() && !disk.complete, "{disk:?}");
        assert!(disk.allocated_bytes > 0, "{disk:?}");
    }
    node.make_disk(uid(4)).await;
    let disks = listed(&service(&node).await).await.unwrap();
    let readable = disks.iter().filter(|disk| disk.unreadable.is_empty());
    assert_eq!((disks.len(), readable.count()), (3, 1));
}

#[tokio::test]
async fn a_record_without_a_name_counts_beside_the_files() {
    let node = Node::new().await;
    node.make_disk(uid(1)).await;
    let lose = |t: &rusqlite::Transaction<'_>| t.execute_batch("UPDATE vm_disks SET key = 'lost'");
    node.db.write(lose).await.unwrap();
    let node = node.restarted().await;
    let disks = listed(&service(&node).await).await.unwrap();
    let uids: Vec<_> = disks.iter().map(|disk| disk.vm_uid.clone()).collect();
    assert_eq!(uids, [String::new(), uid(1).to_string()], "{disks:?}");
}

#[tokio::test]
async fn a_directory_that_cannot_be_looked_through_is_no_node_without_disks() {
    let node = Node::new().await;
    let file = node.disks.file(uid(1));
    let root = file.ancestors().nth(2).unwrap();
    std::fs::remove_dir_all(root).unwrap();
    let refused = listed(&service(&node).await).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    let text = refused.message();
    assert!(
        text.contains("look through") && text.contains("disks"),
        "{text}"
    );
}

#[tokio::test]
async fn a_manifest_is_listed_with_its_disk_and_read_back() {
    let node = Node::new().await;
    node.make_disk(uid(1)).await;
    let service = service(&node).await;
    let set = |vm: VmUid, manifest: Vec<u8>| {
        service.set_manifest(tonic::Request::new(SetManifestRequest {
            vm_uid: vm.to_string(),
            cluster_uid: "c-1".to_owned(),
            manifest,
        }))
    };
    let asked = |vm: VmUid| {
        tonic::Request::new(GetManifestRequest {
            vm_uid: vm.to_string(),
        })
    };
    let socket = tokio::net::UnixStream::pair().unwrap().0;
    let get = |vm: VmUid| {
        let mut request = asked(vm);
        request.extensions_mut().insert(UdsConnectInfo {
            peer_addr: None,
            peer_cred: socket.peer_cred().ok(),
        });
        service.get_manifest(request)
    };
    assert_eq!(listed(&service).await.unwrap()[0].manifest_bytes, 0);
    assert_eq!(get(uid(1)).await.unwrap_err().code(), Code::NotFound);
    set(uid(1), b"{}".to_vec()).await.unwrap();
    let disk = listed(&service).await.unwrap().remove(0);
    assert_eq!((disk.manifest_bytes, disk.cluster_uid.as_str()), (2, "c-1"));
    let found = get(uid(1)).await.unwrap().into_inner();
    assert_eq!(
        (found.cluster_uid.as_str(), &*found.manifest),
        ("c-1", &b"{}"[..])
    );
    let refused = set(uid(2), b"{}".to_vec()).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    for odd in [vec![b' '; (64 << 10) + 1], vec![0xff]] {
        let refused = set(uid(1), odd).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    // The agent, or anyone else.
    let refused = service.get_manifest(asked(uid(1))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    // What is there stays.
    assert_eq!(get(uid(1)).await.unwrap().into_inner().manifest, b"{}");
}
