//! What no row accounts for.
//!
//! Invariant: domains of ours, files and pins without a row go, in this order; everything else
//! stays.
//! Failure: what was left, or what was taken that was not ours.

use libvirt::{Hypervisor, Power, State};
use podspec::{ContainerId, SandboxId, VmUid};
use uuid::Uuid;

use crate::testkit::Node;
use crate::vm::state::Phase;

const FOREIGN: Uuid = Uuid::from_u128(0xf0);

/// Forgets all rows behind the services' back, as when the database is lost.
async fn lose_rows(node: &Node) {
    for row in node.rows.all() {
        node.rows.remove(&row.id).await.unwrap();
    }
    for row in node.sandbox_rows.all() {
        node.sandbox_rows.remove(&row.id).await.unwrap();
    }
}

#[tokio::test]
async fn a_domain_of_ours_without_a_row_goes_and_a_foreign_one_stays() {
    let node = Node::new().await;
    let id = node.started().await;
    let foreign = format!("<domain><name>theirs</name><uuid>{FOREIGN}</uuid></domain>");
    node.hypervisor.define(foreign).await.unwrap();
    node.hypervisor.start(FOREIGN).await.unwrap();
    lose_rows(&node).await;
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.domain(&id).await, None);
    let foreign = node.hypervisor.state(FOREIGN).await.unwrap();
    assert_eq!(foreign, Some(State::Active));
}

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

/// A running container of the virtual machine in a pod of its own.
async fn machine(node: &Node, pod: &str) -> ContainerId {
    let sandbox = node.annotated(pod, &[("vm-disk", VM)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    id
}

#[tokio::test]
async fn an_old_list_of_domains_costs_no_machine_that_was_started_since() {
    let node = Node::new().await;
    let vm: VmUid = VM.parse().unwrap();
    node.make_disk(vm).await;
    let old = machine(&node, "old").await;
    let listed = node.hypervisor.list().await.unwrap();
    assert_eq!(listed[0].container, old.as_str());
    node.containers.remove(&old).await.unwrap();
    let new = machine(&node, "new").await;

    node.containers.collect(&listed).await.unwrap();
    let power = node.hypervisor.power(vm.uuid()).await.unwrap();
    assert_eq!(power, Some(Power::On), "the new machine was killed");
    assert_eq!(node.phase(&new), Phase::Running);
    assert!(node.disks.is_held_by(vm, &new) && node.disks.seed_file(vm).exists());

    // A domain of the same list without an owner goes.
    lose_rows(&node).await;
    node.containers.collect(&listed).await.unwrap();
    assert_eq!(node.hypervisor.power(vm.uuid()).await.unwrap(), None);
    assert_eq!(node.disks.get(vm).unwrap().holder, None);
}

#[tokio::test]
async fn another_daemons_domain_stays_and_one_with_files_in_our_directory_goes() {
    let node = Node::new().await;
    let own = node.containers.paths().consoles().join("x.raw");
    let own = own.display().to_string();
    let other = "/elsewhere/console/x.raw";
    let cases = [
        (1, " installation='other'", other, true),
        (2, "", other, true),
        (3, " installation='other'", own.as_str(), false),
        (4, "", own.as_str(), false),
        (5, " installation='testkit'", other, false),
    ];
    for (number, more, console, _) in cases {
        let uuid = Uuid::from_u128(number);
        let xml = format!(
            "<domain><name>n{number}</name><uuid>{uuid}</uuid>\
             <metadata><vm container='c'{more}/></metadata>\
             <devices><serial><log file='{console}'/></serial></devices></domain>"
        );
        node.hypervisor.define(xml).await.unwrap();
        node.hypervisor.start(uuid).await.unwrap();
    }
    node.containers.reconcile().await.unwrap();
    for (number, _, _, stays) in cases {
        let state = node.hypervisor.state(Uuid::from_u128(number)).await;
        assert_eq!(state.unwrap().is_some(), stays, "{number}");
    }
}

#[tokio::test]
async fn files_without_a_row_go_only_after_the_machine_that_has_them_open() {
    let node = Node::new().await;
    node.started().await;
    lose_rows(&node).await;
    let node = node.restarted().await;
    node.hypervisor.disconnect();
    node.containers.reconcile().await.unwrap_err();
    assert!(node.files().len() > 2, "{:?}", node.files());
    node.hypervisor.reconnect();
    node.containers.reconcile().await.unwrap();
    assert!(node.files().is_empty(), "{:?}", node.files());
}

#[tokio::test]
async fn the_files_of_every_row_stay() {
    let node = Node::new().await;
    let id = node.started().await;
    let paths = node.containers.paths();
    let stray = [
        paths.pod(&SandboxId::generate()),
        paths.console_file(&ContainerId::generate()),
        paths.pods().join("short"),
    ];
    let own = [
        paths.pod(&node.row(&id).sandbox),
        paths.console_file(&id),
        paths.sockets(&id),
    ];
    for path in &stray {
        std::fs::write(path, "").unwrap();
    }
    node.containers.reconcile().await.unwrap();
    assert!(own.iter().all(|path| path.exists()), "{:?}", node.files());
    assert!(
        !stray.iter().any(|path| path.exists()),
        "{:?}",
        node.files()
    );
}

#[tokio::test]
async fn an_image_pinned_without_a_user_is_unpinned() {
    let node = Node::new().await;
    let id = node.created().await;
    let sandbox = node.row(&id).sandbox.clone();
    let lost = SandboxId::generate();
    let image = node.image("other");
    for owner in [lost.as_str(), "no id at all"] {
        node.images.pin(owner, &image).await.unwrap();
    }
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.images.owners(), [sandbox.to_string()]);
}
