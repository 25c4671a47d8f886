//! What a reboot does to machines, before libvirt or networks answer.
//!
//! Invariant: the fakes keep what a real node keeps: rows, disks, consoles and definitions of
//! domains.
//! Failure: a phase, an exit or a file that is not what kubelet needs.

use crate::sandbox;
use crate::testkit::Node;
use crate::vm::state::Phase;

#[tokio::test]
async fn after_a_reboot_nothing_runs_or_is_ready_without_any_call() {
    let node = Node::new().await;
    let running = node.started().await;
    node.prints(&running, "last words\n");
    let sandbox = node.row(&running).sandbox.clone();
    let log = node.row(&running).spec.log_path.clone();
    let node = node.restarted().await;
    node.hypervisor.disconnect();
    node.network.set_away(true);

    node.sandboxes.after_reboot().await;
    node.containers.after_reboot().await;
    assert_eq!(node.phase(&running), Phase::Exited);
    assert_eq!(node.exit(&running), (255, "Unknown".to_owned()));
    assert!(node.row(&running).finished_at > 0);
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("last words"), "{log}");
    let row = node.sandbox_rows.get(&sandbox).unwrap();
    assert_eq!(row.phase, sandbox::state::Phase::Stopping);
    // Once more, as after a crash in between.
    node.sandboxes.after_reboot().await;
    node.containers.after_reboot().await;

    // libvirt has kept the definition, the networks no longer exist.
    node.hypervisor.crash(running.domain());
    node.hypervisor.reconnect();
    node.network.set_away(false);
    node.network.lose(&sandbox);
    node.sandboxes.reconcile().await.unwrap();
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.domain(&running).await, None);
    let row = node.sandbox_rows.get(&sandbox).unwrap();
    assert_eq!(row.phase, sandbox::state::Phase::Stopped);

    // kubelet's next attempt of the same pod, then its clean-up.
    let mut next = node.pod("pod");
    next.metadata.attempt = 1;
    let again = node.sandboxes.run(next).await.unwrap();
    let container = node.containers.create(&again, node.machine(1)).await;
    let container = container.unwrap();
    node.containers.start(&container).await.unwrap();
    assert_eq!(node.phase(&container), Phase::Running);
    for sandbox in [sandbox, again] {
        node.sandboxes.remove(&sandbox).await.unwrap();
    }
    assert!(node.files().is_empty(), "{:?}", node.files());
    assert!(node.network.ids().is_empty());
}

#[tokio::test]
async fn a_start_that_a_reboot_cut_short_can_be_undone() {
    let node = Node::new().await;
    let id = node.created().await;
    node.force(&id, |row| row.phase = Phase::Starting).await;
    let sandbox = node.row(&id).sandbox.clone();
    node.sandboxes.after_reboot().await;
    node.containers.after_reboot().await;
    node.network.lose(&sandbox);
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.phase(&id), Phase::Created);
    node.sandboxes.remove(&sandbox).await.unwrap();
    assert!(node.files().is_empty(), "{:?}", node.files());
}

#[tokio::test]
async fn a_container_that_cannot_be_settled_after_a_reboot_keeps_no_other_from_it() {
    let node = Node::new().await;
    let stuck = node.started().await;
    let sandbox = node.annotated("other", &[]).await;
    let other = node.containers.create(&sandbox, node.machine(0)).await;
    let other = other.unwrap();
    node.containers.start(&other).await.unwrap();
    let node = node.restarted().await;
    // Its console cannot be removed.
    let console = node.containers.paths().console_file(&stuck);
    if console.exists() {
        std::fs::remove_file(&console).unwrap();
    }
    std::fs::create_dir_all(console.join("in the way")).unwrap();
    node.sandboxes.after_reboot().await;
    node.containers.after_reboot().await;
    assert_eq!(node.exit(&other), (255, "Unknown".to_owned()));
    assert!(!node.containers.paths().console_file(&other).exists());

    std::fs::remove_dir_all(&console).unwrap();
    node.hypervisor.crash(stuck.domain());
    node.hypervisor.crash(other.domain());
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.phase(&stuck), Phase::Exited);
}
