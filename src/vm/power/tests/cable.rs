//! Guests that return from saved memory to other addresses.
//!
//! Invariant: their cables are pulled before they run, and plugged in again while they do.
//! Failure: a test prints what was pulled and plugged in.

use libvirt::Cable;
use podspec::{ContainerId, VmUid};

use crate::disk::SavedNic;
use crate::testkit::Node;

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

/// A machine that returned from memory in which its NIC has these addresses; there are none in its
/// pod.
async fn resumed(addresses: &[&str]) -> (Node, ContainerId) {
    let vm: VmUid = VM.parse().unwrap();
    let node = Node::new().await;
    node.make_disk(vm).await;
    let nic = SavedNic {
        mac: "0a:58:0a:01:00:05".to_owned(),
        addresses: addresses.iter().map(|a| (*a).to_owned()).collect(),
    };
    node.disks.begin_memory(vm, vec![nic], false).await.unwrap();
    std::fs::write(node.disks.unfinished_memory(vm), "LibvirtQemudSave").unwrap();
    assert!(node.disks.settle_memory(vm).await.unwrap());
    let restore = [("vm-disk", VM), ("restore", "true")];
    let sandbox = node.annotated("pod", &restore).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    (node, id)
}

#[tokio::test]
async fn a_guest_whose_address_is_gone_sees_its_cable_pulled_and_plugged_in() {
    let (node, _) = resumed(&["10.1.0.5"]).await;
    let nic = || "vmlet-net0".to_owned();
    let expected = [
        (nic(), Cable::Pulled, false),
        (nic(), Cable::PluggedIn, true),
    ];
    assert_eq!(node.hypervisor.cables(), expected);
}

#[tokio::test]
async fn a_guest_that_has_its_addresses_keeps_its_cable() {
    let (node, _) = resumed(&[]).await;
    assert!(node.hypervisor.cables().is_empty());
}
