//! Containers of virtual machines: one disk, one domain, several pods one after the other.
//!
//! Invariant: only the container that holds the disk changes the domain; memory is used once.
//! Failure: a test names what was touched, lost or allowed.

use std::sync::Arc;
use std::time::Duration;

use libvirt::{FakeHypervisor, Hypervisor, Power};
use podspec::{ContainerId, VmUid};

use crate::disk;
use crate::testkit::{Node, TIMEOUT};
use crate::vm::state::Phase;
use crate::vm::{Error, LinuxResources, Result};

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

fn vm() -> VmUid {
    VM.parse().unwrap()
}

async fn node() -> Node {
    let node = Node::new().await;
    node.make_disk(vm()).await;
    node
}

async fn create(node: &Node, name: &str, more: &[(&str, &str)]) -> Result<ContainerId> {
    let annotations = [&[("vm-disk", VM)], more].concat();
    let sandbox = node.annotated(name, &annotations).await;
    node.containers.create(&sandbox, node.machine(0)).await
}

async fn started(node: &Node, name: &str, more: &[(&str, &str)]) -> ContainerId {
    let id = create(node, name, more).await.unwrap();
    node.containers.start(&id).await.unwrap();
    id
}

/// Waits for what a client sees; the last steps of the end may be in progress.
async fn ended(node: &Node, id: &ContainerId) {
    node.until(id, |row| row.phase == Phase::Exited).await;
}

#[tokio::test]
async fn the_removal_of_an_old_container_leaves_the_machine_alone() {
    let node = node().await;
    let old = started(&node, "old", &[]).await;
    node.hypervisor.power_off(vm().uuid());
    ended(&node, &old).await;
    let new = started(&node, "new", &[]).await;
    assert_eq!(node.row(&new).domain(), vm().uuid());
    node.containers.reconcile().await.unwrap();
    node.containers.remove(&old).await.unwrap();
    let sandbox = node.row(&new).sandbox.clone();
    assert_eq!(node.phase(&new), Phase::Running);
    let power = node.hypervisor.power(vm().uuid()).await.unwrap();
    assert_eq!(power, Some(Power::On), "the new machine was killed");
    node.sandboxes.remove(&sandbox).await.unwrap();
    assert!(node.disks.file(vm()).exists(), "the disk went with a pod");
    assert!(node.disks.get(vm()).unwrap().holder.is_none());
    assert!(node.domain(&new).await.is_none());
}

#[tokio::test]
async fn a_machine_boots_from_its_disk_without_any_image_of_a_name() {
    let node = node().await;
    let digest = node.disks.get(vm()).unwrap().digest.clone();
    node.images.remove(&node.image("disk")).await.unwrap();
    let requests = node.requests();
    let sandbox = node.annotated("pod", &[("vm-disk", VM)]).await;
    let mut config = node.machine(0);
    // As kubelet requests it: the id is the answer of ImageStatus.
    config.image.image = crate::images::none().digest.to_string();
    config.image.user_specified_image = "vmlet.dev/none".to_owned();
    let id = node.containers.create(&sandbox, config).await.unwrap();
    node.containers.start(&id).await.unwrap();
    let row = node.row(&id);
    assert_eq!(
        (row.phase, &row.spec.image_digest),
        (Phase::Running, &digest)
    );
    assert_eq!(node.requests(), requests, "a server was asked");
    let pinned = node.images.all_pinned();
    let pinned: Vec<_> = pinned.iter().map(ToString::to_string).collect();
    assert_eq!(pinned, [digest]);
}

#[tokio::test]
async fn a_way_to_make_a_disk_that_is_there_has_no_effect_and_says_so() {
    let node = node().await;
    let direct: &[_] = &[("fast-deploy", "direct")];
    for (name, annotations, is_named) in [("plain", &[][..], false), ("copied", direct, true)] {
        let id = create(&node, name, annotations).await.unwrap();
        let found = node.row(&id).spec.unsupported.clone();
        let words = "vmlet.dev/fast-deploy has no effect";
        let named = found.iter().any(|text| text.contains(words));
        assert_eq!(named, is_named, "{name}: {found:?}");
        node.containers.remove(&id).await.unwrap();
    }
}

#[tokio::test]
async fn the_annotation_of_a_container_has_no_effect_on_its_disk_and_says_so() {
    let node = node().await;
    let sandbox = node.annotated("pod", &[]).await;
    let mut config = node.machine(0);
    let annotation = ("vmlet.dev/fast-deploy".to_owned(), "direct".to_owned());
    config.annotations.extend([annotation]);
    let id = node.containers.create(&sandbox, config).await.unwrap();
    let found = &node.row(&id).spec.unsupported;
    let is_named = |text: &String| text.contains("fast-deploy of a container has no effect");
    assert!(found.iter().any(is_named), "{found:?}");
}

#[tokio::test]
async fn a_second_machine_on_a_disk_is_refused() {
    let node = node().await;
    let first = create(&node, "first", &[]).await.unwrap();
    let seed = node.disks.seed_file(vm());
    let before = std::fs::read(&seed).unwrap();
    let data = [("cloud-init-user-data", "packages: [second]")];
    let refused = create(&node, "second", &data).await.unwrap_err();
    let after = std::fs::read(&seed).unwrap();
    assert!(before == after, "the first one lost its cloud-init disk");
    assert!(
        matches!(&refused, Error::VmDisk(disk::Error::InUse { holder, .. }) if *holder == first),
        "{refused}"
    );
    assert!(node.containers.delete_disk(vm()).await.is_err());
    node.containers.remove(&first).await.unwrap();
    create(&node, "third", &[]).await.unwrap();
}

#[tokio::test]
async fn a_domain_that_still_has_the_disk_open_is_seen_without_a_row() {
    let node = node().await;
    let lost = started(&node, "lost", &[]).await;
    node.rows.remove(&lost).await.unwrap();
    node.disks.give_back(vm(), &lost).await.unwrap();
    let refused = create(&node, "next", &[]).await.unwrap_err();
    assert!(matches!(refused, Error::DomainLives { .. }), "{refused}");
    assert!(node.containers.delete_disk(vm()).await.is_err());
    node.containers.reconcile().await.unwrap();
    create(&node, "after", &[]).await.unwrap();
}

#[tokio::test]
async fn a_disk_held_by_a_container_that_is_gone_is_taken_back() {
    let node = node().await;
    let gone = create(&node, "gone", &[]).await.unwrap();
    node.rows.remove(&gone).await.unwrap();
    let node = node.restarted().await;
    node.containers.reconcile().await.unwrap();
    assert!(node.disks.get(vm()).unwrap().holder.is_none());
    node.containers.delete_disk(vm()).await.unwrap();
    assert!(!node.disks.file(vm()).exists());
}

#[tokio::test]
async fn saved_memory_is_resumed_once_by_its_own_machine() {
    let node = node().await;
    let early = create(&node, "early", &[("restore", "true")]).await;
    assert!(matches!(
        early.unwrap_err(),
        Error::VmDisk(disk::Error::NoMemory(_))
    ));
    let first = started(&node, "first", &[]).await;
    node.containers.save(vm()).await.unwrap();
    ended(&node, &first).await;
    assert_eq!(node.exit(&first), (0, "Saved".to_owned()));
    node.containers.save(vm()).await.unwrap();
    node.containers.restore(vm(), false).await.unwrap();
    let cold = create(&node, "cold", &[]).await.unwrap_err();
    assert!(matches!(cold, Error::VmDisk(disk::Error::Memory(_))));

    let second = started(&node, "second", &[("restore", "true")]).await;
    let power = node.hypervisor.power(vm().uuid()).await.unwrap();
    assert_eq!(power, Some(Power::On));
    assert!(!node.disks.memory_file(vm()).exists());
    assert!(node.containers.restore(vm(), false).await.is_err());
    node.hypervisor.crash(vm().uuid());
    ended(&node, &second).await;
    create(&node, "boots", &[]).await.unwrap();
}

/// Otherwise the memory would name a device that is not there, and could not be resumed.
#[tokio::test]
async fn a_resumed_guest_keeps_its_nics_when_the_pod_has_changed() {
    let node = node().await;
    let detached = async |name: &str, all: &[(&str, &str)]| {
        let id = started(&node, name, all).await;
        let requested = node.network.added().pop().unwrap();
        node.containers.save(vm()).await.unwrap();
        ended(&node, &id).await;
        (requested.detached, requested.known_nics.len())
    };
    let resumed = [("restore", "true"), ("network", "pod")];
    let alone = [("restore", "true"), ("network", "none")];
    assert_eq!(detached("first", &[("network", "none")]).await, (true, 0));
    assert_eq!(detached("second", &resumed).await, (true, 0));
    assert_eq!(detached("third", &resumed).await, (true, 0));
    node.containers.restore(vm(), true).await.unwrap();
    assert_eq!(detached("fourth", &[]).await, (false, 0));
    assert_eq!(detached("fifth", &alone).await, (false, 1));
}

#[tokio::test]
async fn a_mac_address_is_requested_at_boot_and_kept_at_resume() {
    let node = node().await;
    let mac = ("mac-address", "52:54:00:12:34:5A");
    let first = started(&node, "first", &[mac]).await;
    let requested = node.network.added().pop().unwrap();
    assert_eq!(
        (requested.mac.as_str(), requested.detached),
        ("52:54:00:12:34:5a", false)
    );
    node.containers.save(vm()).await.unwrap();
    ended(&node, &first).await;
    started(&node, "second", &[mac, ("restore", "true")]).await;
    let requested = node.network.added().pop().unwrap();
    assert_eq!(
        (requested.mac.as_str(), requested.known_nics.len()),
        ("", 1)
    );

    let mut odd = node.pod("odd");
    let group = "01:00:5e:00:00:01".to_owned();
    odd.annotations
        .insert("vmlet.dev/mac-address".to_owned(), group);
    let refused = node.sandboxes.run(odd).await.unwrap_err();
    let words = crate::one_line(&refused);
    assert!(words.contains("vmlet.dev/mac-address"), "{words}");
    assert!(words.contains("group"), "{words}");
}

#[tokio::test]
async fn a_guest_that_was_paused_comes_back_paused() {
    let node = node().await;
    let first = started(&node, "first", &[("start-paused", "true")]).await;
    let power = async || node.hypervisor.power(vm().uuid()).await.unwrap();
    assert!(matches!(power().await, Some(Power::Paused(_))));
    node.containers.save(vm()).await.unwrap();
    ended(&node, &first).await;
    started(&node, "second", &[("restore", "true")]).await;
    assert!(matches!(power().await, Some(Power::Paused(_))));
    node.containers.unpause(vm()).await.unwrap();
    assert_eq!(power().await, Some(Power::On));
}

#[tokio::test]
async fn a_resumed_guest_goes_on_after_the_daemon_died_in_between() {
    let node = node().await;
    let first = started(&node, "first", &[]).await;
    node.containers.save(vm()).await.unwrap();
    ended(&node, &first).await;
    let second = started(&node, "second", &[("restore", "true")]).await;
    // As it was between the restore and its record.
    let file = node.disks.unfinished_memory(vm());
    node.disks.begin_memory(vm(), vec![], false).await.unwrap();
    std::fs::write(file, "LibvirtQemudSave").unwrap();
    assert!(node.disks.settle_memory(vm()).await.unwrap());
    node.hypervisor.suspend(vm().uuid()).await.unwrap();
    node.force(&second, |row| row.phase = Phase::Starting).await;
    let node = node.restarted().await;
    node.containers.start(&second).await.unwrap();
    assert_eq!(node.phase(&second), Phase::Running);
    let power = node.hypervisor.power(vm().uuid()).await.unwrap();
    assert_eq!(power, Some(Power::On));
    assert!(node.disks.get(vm()).unwrap().memory.is_none());
}

#[tokio::test]
async fn a_placeholder_runs_without_a_machine_until_it_is_stopped() {
    let node = Node::new().await;
    let sandbox = node.annotated("place", &[("role", "provision")]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    assert_eq!(node.phase(&id), Phase::Running);
    assert!(node.row(&id).started_at > 0);
    assert!(node.containers.reconcile().await.unwrap());
    let node = node.restarted().await;
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.phase(&id), Phase::Running);
    let refused = node.containers.exec(&id, vec!["true".to_owned()], None);
    assert!(matches!(refused.await, Err(Error::Placeholder(_))));
    let cpus = LinuxResources {
        cpuset_cpus: "0".to_owned(),
        ..LinuxResources::default()
    };
    node.containers.update(&id, cpus).await.unwrap();
    let hour = Duration::from_secs(3600);
    node.containers.stop(&id, hour).await.unwrap();
    assert_eq!(node.phase(&id), Phase::Exited);
    assert_eq!(node.exit(&id), (0, "Provisioned".to_owned()));
    // kubelet takes no status of a container without an image.
    assert!(!node.row(&id).spec.image_digest.is_empty());
    assert!(node.hypervisor.list().await.unwrap().is_empty());
    node.sandboxes.remove(&sandbox).await.unwrap();
    assert!(node.files().is_empty());
}

#[tokio::test]
async fn a_cut_of_the_power_is_for_one_pod_and_shortens_a_stop_that_is_under_way() {
    let node = Node::with(FakeHypervisor::default().guest_ignores_shutdown()).await;
    node.make_disk(vm()).await;
    let id = started(&node, "pod", &[]).await;
    let sandbox = node
        .containers
        .parts
        .sandboxes
        .get(&node.row(&id).sandbox)
        .unwrap();
    let pod = &sandbox.config.metadata.uid;
    let containers = Arc::clone(&node.containers);
    let stopped = id.clone();
    let patient = async move { containers.stop(&stopped, Duration::from_secs(3600)).await };
    let patient = tokio::spawn(patient);
    node.until(&id, |row| row.phase == Phase::Stopping).await;

    let another = node.containers.power_off(vm(), "another", Duration::ZERO);
    another.await.unwrap();
    assert_eq!(node.phase(&id), Phase::Stopping, "the pod is another one");
    let cut = node.containers.power_off(vm(), pod, Duration::ZERO);
    tokio::time::timeout(TIMEOUT, cut).await.unwrap().unwrap();
    assert_eq!(node.phase(&id), Phase::Exited);
    patient.await.unwrap().unwrap();
    // It has ended already.
    let again = node.containers.power_off(vm(), pod, Duration::ZERO);
    again.await.unwrap();
}
