//! Machines whose guests follow late.
//!
//! Invariant: what is wanted stays in the row until the guest has it, another change replaces it or
//! the machine ends; neither a stop nor another change waits for the guest.
//! Failure: a machine that keeps all its CPUs because it boots slowly, or that cannot be stopped.

use std::sync::Arc;
use std::time::Duration;

use podspec::ContainerId;
use serde_json::Value;
use tokio::time::Instant;

use super::resize::{cpus, memory, quota};
use super::room::{has, refused, shown, started, use_cpus, with_kvm};
use crate::testkit::Node;
use crate::vm::{Error, LinuxResources};

/// Longer than the daemon waits for a guest in a request.
const BOOT: Duration = Duration::from_secs(600);
/// Shorter than that, and than the pauses between attempts in the end.
const AT_ONCE: Duration = Duration::from_secs(2);

/// An emulated machine that is to use two of its four CPUs; its guest has no agent yet.
async fn booting(node: &Node) -> ContainerId {
    let id = started(node, "2").await;
    tokio::time::pause();
    node.until(&id, |row| row.wanted.is_some()).await;
    id
}

/// The agent starts and takes CPUs off line until the guest uses two of four.
async fn boots(node: &Node, id: &ContainerId) {
    node.hypervisor.start_agent(id.domain(), use_cpus(4, 2));
    let begun = Instant::now();
    node.until(id, |row| row.wanted.is_none()).await;
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    assert_eq!((has(node, id).0, shown(node, id).0), (4, 2));
    assert_eq!(switched(node), 2);
}

/// How many CPUs the agent was requested to switch so far.
fn switched(node: &Node) -> usize {
    let commands = node.hypervisor.agent_commands().into_iter();
    let of = |command: Value| command["arguments"]["vcpus"].as_array().map_or(0, Vec::len);
    commands.map(of).sum()
}

#[tokio::test]
async fn a_guest_that_boots_slowly_follows_when_its_agent_connects() {
    let node = Node::new().await;
    let id = booting(&node).await;
    tokio::time::sleep(BOOT).await;
    let attempts = node.hypervisor.agent_commands().len();
    assert!((10..100).contains(&attempts), "{attempts} attempts");
    boots(&node, &id).await;
}

#[tokio::test]
async fn a_guest_follows_late_also_after_a_restart() {
    let node = Node::new().await;
    let id = booting(&node).await;
    let node = node.restarted().await;
    node.containers.reconcile().await.unwrap();
    tokio::time::sleep(BOOT).await;
    boots(&node, &id).await;
}

#[tokio::test]
async fn a_guest_that_boots_again_follows_again() {
    let node = Node::new().await;
    let id = booting(&node).await;
    boots(&node, &id).await;
    node.hypervisor.start_agent(id.domain(), use_cpus(4, 2));
    libvirt::Hypervisor::reset(&node.hypervisor, id.domain())
        .await
        .unwrap();
    node.until(&id, |_| switched(&node) == 4).await;
    node.until(&id, |row| row.wanted.is_none()).await;
}

#[tokio::test]
async fn a_pod_is_stopped_while_its_guest_does_not_follow() {
    let node = Node::new().await;
    let id = booting(&node).await;
    let begun = Instant::now();
    let sandbox = node.row(&id).sandbox.clone();
    node.sandboxes.stop(&sandbox).await.unwrap();
    node.containers.remove(&id).await.unwrap();
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_stop_ends_a_change_in_progress() {
    let node = with_kvm().await;
    let id = started(&node, "2").await;
    tokio::time::pause();
    node.hypervisor.guest_keeps_its_size(true);
    let begun = Instant::now();
    let containers = Arc::clone(&node.containers);
    let of = id.clone();
    let is_more = |wanted: &LinuxResources| wanted.memory_limit_in_bytes > 0;
    let update = tokio::spawn(async move { containers.update(&of, memory(128)).await });
    node.until(&id, |row| row.wanted.as_ref().is_some_and(is_more))
        .await;
    let sandbox = node.row(&id).sandbox.clone();
    node.sandboxes.stop(&sandbox).await.unwrap();
    let ended = update.await.unwrap();
    assert!(matches!(ended, Err(Error::Phase { .. })), "{ended:?}");
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_newer_change_replaces_what_the_guest_has_not_done() {
    let node = Node::new().await;
    let id = booting(&node).await;
    node.containers.update(&id, quota(4)).await.unwrap();
    assert_eq!((shown(&node, &id).0, &node.row(&id).wanted), (4, &None));
    let attempts = node.hypervisor.agent_commands().len();
    tokio::time::sleep(BOOT).await;
    assert_eq!(node.hypervisor.agent_commands().len(), attempts);
}

#[tokio::test]
async fn a_refused_change_leaves_the_size_of_the_pod_wanted() {
    let node = Node::new().await;
    let id = booting(&node).await;
    let begun = Instant::now();
    refused(node.containers.update(&id, quota(1)).await, "agent");
    assert!(begun.elapsed() >= Duration::from_secs(60));
    let row = node.row(&id);
    assert_eq!(row.wanted.as_ref(), Some(row.resources()));
    boots(&node, &id).await;
}

#[tokio::test]
async fn a_change_beside_the_size_does_not_wait_for_the_guest() {
    let node = Node::new().await;
    let id = booting(&node).await;
    let begun = Instant::now();
    node.containers.update(&id, cpus("1")).await.unwrap();
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    assert_eq!(node.hypervisor.pinned(id.domain()), [1]);
    assert_eq!(node.row(&id).resources().cpuset_cpus, "1");
    boots(&node, &id).await;
    assert_eq!(node.row(&id).resources().cpuset_cpus, "1");
}

#[tokio::test]
async fn what_a_machine_cannot_get_while_it_runs_is_given_up() {
    let node = Node::new().await;
    let sandbox = node
        .annotated("fixed", &[("max-vcpus", "4"), ("vcpu-count", "4")])
        .await;
    let id = node
        .containers
        .create(&sandbox, node.machine(0))
        .await
        .unwrap();
    node.containers.start(&id).await.unwrap();
    node.force(&id, |row| row.wanted = Some(memory(128))).await;
    node.containers.reconcile().await.unwrap();
    node.until(&id, |row| row.wanted.is_none()).await;
    assert_eq!(shown(&node, &id), (4, 64));
}
