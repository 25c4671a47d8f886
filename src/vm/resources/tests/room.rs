//! Machines with room for more virtual CPUs and more memory, grown and shrunk while they run.
//!
//! Invariant: what the status shows, the guest has.
//! Failure: a change that is lost, or that stays although it was refused.

use libvirt::FakeHypervisor;
use podspec::ContainerId;
use serde_json::{Value, json};

use super::resize::{memory, quota};
use crate::testkit::Node;
use crate::vm::Error;
use crate::vm::host::accelerator::{Accelerator, Choice};
use crate::vm::model::LinuxResources;

const MIB: u64 = 1 << 20;
const ROOM: &[(&str, &str)] = &[("max-vcpus", "4"), ("max-memory", "256Mi")];

/// A machine of 64 MiB with room, and as many virtual CPUs.
async fn made(node: &Node, vcpus: &str) -> ContainerId {
    let all = [ROOM, &[("vcpu-count", vcpus)]].concat();
    let sandbox = node.annotated("grows", &all).await;
    let created = node.containers.create(&sandbox, node.machine(0)).await;
    created.unwrap()
}

pub(super) async fn started(node: &Node, vcpus: &str) -> ContainerId {
    let id = made(node, vcpus).await;
    node.containers.start(&id).await.unwrap();
    id
}

/// A node whose processor runs the guests.
pub(super) async fn with_kvm() -> Node {
    on_kvm(Node::new().await)
}

fn on_kvm(node: Node) -> Node {
    let choice = Choice {
        accelerator: Accelerator::Kvm,
        reason: "the test wants it".to_owned(),
    };
    *node.containers.accelerator.lock().unwrap() = Some(choice);
    node
}

fn both(cpus: i64, mib: i64) -> LinuxResources {
    LinuxResources {
        memory_limit_in_bytes: mib << 20,
        ..quota(cpus)
    }
}

/// Virtual CPUs that are plugged, and MiB that are requested on top of the first and used.
pub(super) fn has(node: &Node, id: &ContainerId) -> (u16, u64, u64) {
    let size = node.hypervisor.size_of(id.domain()).unwrap();
    let spare = size.spare.unwrap();
    (size.vcpus, spare.requested / MIB, spare.plugged / MIB)
}

/// What the status says: virtual CPUs and MiB.
pub(super) fn shown(node: &Node, id: &ContainerId) -> (u16, u64) {
    let size = node.row(id).size();
    (size.vcpus, size.memory.get())
}

pub(super) fn refused(result: Result<(), Error>, words: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Resize { .. }), "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[tokio::test]
async fn a_machine_grows_and_shrinks_within_its_room() {
    let node = with_kvm().await;
    let id = started(&node, "1").await;
    assert_eq!((has(&node, &id), shown(&node, &id)), ((1, 0, 0), (1, 64)));
    node.containers.update(&id, both(3, 193)).await.unwrap();
    // The guest gets memory by steps of 2 MiB.
    assert_eq!(
        (has(&node, &id), shown(&node, &id)),
        ((3, 128, 128), (3, 193))
    );
    node.containers.update(&id, quota(2)).await.unwrap();
    assert_eq!(has(&node, &id), (2, 128, 128));
    node.containers.update(&id, memory(64)).await.unwrap();
    assert_eq!((has(&node, &id), shown(&node, &id)), ((2, 0, 0), (2, 64)));
    let node = node.restarted().await;
    assert_eq!(shown(&node, &id), (2, 64));
}

#[tokio::test]
async fn more_than_the_room_is_refused_with_the_annotation() {
    let node = with_kvm().await;
    let id = started(&node, "1").await;
    let update = |update| node.containers.update(&id, update);
    refused(update(quota(5)).await, "vmlet.dev/max-vcpus");
    refused(update(memory(257)).await, "at most 256 MiB");
    refused(update(memory(63)).await, "has 64 MiB since its start");
    assert_eq!((has(&node, &id), shown(&node, &id)), ((1, 0, 0), (1, 64)));
    let other = node.annotated("fixed", &[]).await;
    let fixed = node
        .containers
        .create(&other, node.machine(0))
        .await
        .unwrap();
    let update = |update| node.containers.update(&fixed, update);
    refused(update(quota(2)).await, "vmlet.dev/max-vcpus");
    refused(update(memory(65)).await, "vmlet.dev/max-memory");
}

#[tokio::test]
async fn a_guest_that_does_not_follow_keeps_what_it_had() {
    let node = with_kvm().await;
    let id = started(&node, "2").await;
    tokio::time::pause();
    node.hypervisor.guest_keeps_its_size(true);
    let grown = node.containers.update(&id, memory(128)).await;
    refused(grown, "driver of virtio-mem");
    assert_eq!((has(&node, &id), shown(&node, &id)), ((2, 0, 0), (2, 64)));
    node.hypervisor.guest_keeps_its_size(false);
    node.containers.update(&id, memory(128)).await.unwrap();
    node.hypervisor.guest_keeps_its_size(true);
    let shrunk = node.containers.update(&id, memory(64)).await;
    refused(shrunk, "gives no more back");
    let shrunk = node.containers.update(&id, quota(1)).await;
    refused(shrunk, "uses 2 virtual CPUs");
    assert_eq!(
        (has(&node, &id), shown(&node, &id)),
        ((2, 64, 64), (2, 128))
    );
    assert_eq!(node.row(&id).wanted, None);
}

/// The agent's answers when the guest is requested to use so many of its four virtual CPUs.
pub(super) fn use_cpus(before: usize, after: usize) -> [Value; 3] {
    let list = |online: usize| {
        let vcpu = |id| json!({"logical-id": id, "online": id < online, "can-offline": id > 0});
        (0..4).map(vcpu).collect::<Value>()
    };
    [list(before), json!(1), list(after)]
}

#[tokio::test]
async fn an_emulated_guest_takes_cpus_off_line_by_its_agent() {
    let replies = [use_cpus(4, 2), use_cpus(2, 1), use_cpus(1, 3)].concat();
    let hypervisor = FakeHypervisor::default().agent_answering(replies);
    let node = Node::with(hypervisor).await;
    let id = started(&node, "2").await;
    assert_eq!((has(&node, &id).0, shown(&node, &id).0), (4, 2));
    node.until(&id, |row| row.wanted.is_none()).await;
    node.containers.update(&id, quota(1)).await.unwrap();
    assert_eq!((has(&node, &id).0, shown(&node, &id).0), (4, 1));
    node.containers.update(&id, quota(3)).await.unwrap();
    assert_eq!((has(&node, &id).0, shown(&node, &id).0), (4, 3));
    let switched = |command: Value| command["arguments"]["vcpus"].as_array().cloned();
    let commands = node.hypervisor.agent_commands().into_iter();
    let all = commands.filter_map(switched).flatten();
    let all: Vec<_> = all
        .map(|vcpu| (vcpu["logical-id"].as_i64(), vcpu["online"] == true))
        .collect();
    let change = |id, online| (Some(id), online);
    let expected = [(3, false), (2, false), (1, false), (1, true), (2, true)];
    assert_eq!(all, expected.map(|(id, online)| change(id, online)));
}

#[tokio::test]
async fn an_emulated_guest_without_an_agent_keeps_its_cpus() {
    let node = Node::new().await;
    let id = started(&node, "4").await;
    tokio::time::pause();
    refused(node.containers.update(&id, quota(1)).await, "agent");
    assert_eq!((has(&node, &id).0, shown(&node, &id).0), (4, 4));
}

#[tokio::test]
async fn what_was_recorded_and_not_made_is_made_after_a_restart() {
    let node = with_kvm().await;
    let id = started(&node, "1").await;
    node.force(&id, |row| row.wanted = Some(both(3, 128))).await;
    assert_eq!(shown(&node, &id), (1, 64), "it is not in force yet");
    let node = on_kvm(node.restarted().await);
    node.containers.reconcile().await.unwrap();
    node.until(&id, |row| row.wanted.is_none()).await;
    assert_eq!(
        (has(&node, &id), shown(&node, &id)),
        ((3, 64, 64), (3, 128))
    );
}

#[tokio::test]
async fn a_change_that_libvirt_missed_is_made_later_unless_another_replaces_it() {
    let node = with_kvm().await;
    let id = started(&node, "1").await;
    for replaced in [false, true] {
        node.hypervisor.disconnect();
        node.containers.update(&id, memory(192)).await.unwrap_err();
        assert_eq!(shown(&node, &id), (1, 64));
        node.hypervisor.reconnect();
        if replaced {
            node.containers.update(&id, memory(64)).await.unwrap();
        }
        node.containers.reconcile().await.unwrap();
        node.until(&id, |row| row.wanted.is_none()).await;
        let more = if replaced { 0 } else { 128 };
        assert_eq!(
            (has(&node, &id), shown(&node, &id)),
            ((1, more, more), (1, 64 + more))
        );
        node.containers.update(&id, memory(64)).await.unwrap();
    }
}

#[tokio::test]
async fn a_machine_starts_with_what_it_got_before() {
    let node = with_kvm().await;
    let id = made(&node, "1").await;
    node.containers.update(&id, both(2, 128)).await.unwrap();
    node.containers.start(&id).await.unwrap();
    assert_eq!(has(&node, &id), (2, 64, 64));
}

#[tokio::test]
async fn a_resumed_machine_begins_as_it_was_saved() {
    let node = with_kvm().await;
    let id = started(&node, "1").await;
    node.containers.update(&id, both(2, 128)).await.unwrap();
    let saved = "<domain><memory unit='KiB'>98304</memory><vcpu current='2'>3</vcpu><vcpus/>\
        <cpu><numa><cell memory='32768' unit='KiB'/></numa></cpu><devices><memory><target>\
        <size unit='KiB'>131072</size><requested unit='KiB'>65536</requested></target></memory>\
        </devices></domain>\0";
    let room = crate::vm::resources::room(&node.row(&id), Some(saved), Accelerator::Tcg);
    let spare = room
        .spare
        .map(|spare| (spare.most_mib, spare.requested_mib));
    assert_eq!(
        (room.vcpus, room.max_vcpus, room.memory_mib),
        (2, Some(3), 32)
    );
    assert_eq!(spare, Some((128, 64)));
    let own = crate::vm::resources::room(&node.row(&id), None, Accelerator::Kvm);
    let spare = own.spare.map(|spare| (spare.most_mib, spare.requested_mib));
    // A guest adds whole blocks of 128 MiB, so that the device is larger than the room.
    assert_eq!((own.vcpus, own.max_vcpus, own.memory_mib), (2, Some(4), 64));
    assert_eq!(spare, Some((256, 64)));
    let emulated = crate::vm::resources::room(&node.row(&id), None, Accelerator::Tcg);
    assert_eq!((emulated.vcpus, emulated.max_vcpus), (4, Some(4)));
}
