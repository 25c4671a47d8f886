//! Starts that fail, and what they leave.
//!
//! Invariant: a helper that is away costs a retry, a machine that cannot start costs the container;
//! neither leaves anything.
//! Failure: the phase, or what was left.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use libvirt::{End, Event, FakeHypervisor};

use crate::testkit::Node;
use crate::vm::Error;
use crate::vm::settings::{Landlock, Settings};
use crate::vm::state::Phase;

#[tokio::test]
async fn a_machine_that_cannot_start_has_exited_with_the_reason() {
    let node = Node::with(FakeHypervisor::default().refusing_start("no such CPU")).await;
    let id = node.created().await;
    let refused = node.containers.start(&id).await;
    assert!(
        matches!(refused, Err(Error::Hypervisor { .. })),
        "{refused:?}"
    );
    assert_eq!(node.exit(&id), (128, "StartError".to_owned()));
    let row = node.row(&id);
    assert!(row.exit.as_ref().unwrap().message.contains("no such CPU"));
    assert!(row.finished_at > 0 && row.started_at == 0);
    assert_left_nothing(&node, &id).await;
}

#[tokio::test]
async fn an_emulator_that_libvirt_cannot_execute_is_an_obstacle_until_it_can() {
    let hypervisor = FakeHypervisor::default().refusing_start("Permission denied");
    let node = Node::with_settings(hypervisor, |settings| {
        settings.emulator = "/bin/sh".into();
        settings.wrapper = "/bin/sh".into();
    });
    let node = node.await;
    assert_eq!(node.containers.obstacle().await, None, "nothing is known");
    assert!(!node.containers.check_emulator().await);
    let obstacle = node.containers.obstacle().await.unwrap();
    assert!(obstacle.contains("Permission denied"), "{obstacle}");
    // What is known stays true while libvirt is away.
    node.hypervisor.disconnect();
    assert!(node.containers.check_emulator().await);
    assert_eq!(node.containers.obstacle().await, Some(obstacle));
    node.hypervisor.reconnect();
    node.hypervisor.accept_starts();
    assert!(node.containers.check_emulator().await);
    assert_eq!(node.containers.obstacle().await, None);
}

#[tokio::test]
async fn without_libvirt_a_start_fails_at_once_and_changes_nothing() {
    let node = Node::new().await;
    let id = node.created().await;
    node.hypervisor.disconnect();
    let before = node.row(&id);
    let begun = Instant::now();
    let refused = node.containers.start(&id).await;
    let Err(Error::Hypervisor { source, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(source.is_unavailable() && begun.elapsed() < Duration::from_secs(30));
    assert_eq!(node.row(&id), before);
    assert!(node.network.starts().is_empty(), "nothing was prepared");
    node.hypervisor.reconnect();
    node.containers.start(&id).await.unwrap();
}

#[tokio::test]
async fn a_start_without_the_owner_of_networks_is_undone_and_may_be_repeated() {
    let node = Node::new().await;
    let id = node.created().await;
    node.network.set_away(true);
    let refused = node.containers.start(&id).await;
    assert!(matches!(refused, Err(Error::Network { .. })), "{refused:?}");
    assert_eq!(node.phase(&id), Phase::Created);
    assert_left_nothing(&node, &id).await;
    node.network.set_away(false);
    node.containers.start(&id).await.unwrap();
    assert_eq!(node.phase(&id), Phase::Running);
}

#[tokio::test]
async fn an_emulator_that_fails_without_the_owner_of_networks_is_not_to_blame() {
    let node = Node::with(FakeHypervisor::default().refusing_start("no descriptors")).await;
    let id = node.created().await;
    node.network.leave_after_the_token();
    node.containers.start(&id).await.unwrap_err();
    assert_eq!(node.phase(&id), Phase::Created);
    assert_left_nothing(&node, &id).await;
    node.network.set_away(false);
    node.hypervisor.accept_starts();
    node.containers.start(&id).await.unwrap();
    node.prints(&id, "the new console\n");
    node.logged(&id, "the new console").await;
}

#[tokio::test]
async fn a_late_event_of_an_undone_start_does_not_end_the_next() {
    let node = Node::new().await;
    let id = node.started().await;
    let late = Event::Stopped(id.domain(), End::Crashed);
    node.containers.on_event(late).await;
    assert_eq!(node.phase(&id), Phase::Running);
}

async fn assert_left_nothing(node: &Node, id: &podspec::ContainerId) {
    assert_eq!(node.domain(id).await, None);
    let paths = node.containers.paths();
    let left = std::fs::read_dir(paths.consoles()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_guest_sees_the_generation_id_of_its_disk_unless_its_memory_was_saved_without() {
    let node = Node::new().await;
    let uid = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b01";
    let vm = uid.parse().unwrap();
    node.make_disk(vm).await;
    let sandbox = node.annotated("machine", &[("vm-disk", uid)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    let known = node.disks.generation(vm).await.unwrap();
    let xml = node.hypervisor.xml(node.row(&id).domain()).unwrap();
    assert!(xml.contains(&format!("guid={known}")), "{xml}");
    let row = node.row(&id);
    let pod = node.containers.sandbox_of(&row).unwrap();
    let saved = async |xml: &str| {
        let generation = node.containers.generation(&row, &pod, Some(xml)).await;
        generation.unwrap()
    };
    assert_eq!(saved("<domain/>").await, None);
    assert_eq!(saved(&xml).await, Some(known));
}

#[tokio::test]
async fn a_node_without_landlock_starts_no_machine_that_requires_it() {
    let require = |settings: &mut Settings| settings.landlock = Landlock::Required;
    let node = Node::with_settings(FakeHypervisor::default(), require).await;
    let id = node.created().await;
    let mut equipment = node.containers.equipment().await.unwrap();
    equipment.kernel.landlock = 0;
    node.containers.equipment.pretend(equipment.clone());
    let refused = node.containers.start(&id).await.unwrap_err();
    assert!(matches!(refused, Error::NoLandlock), "{refused}");
    assert!(refused.to_string().contains("lsm="), "{refused}");
    assert_eq!(node.phase(&id), Phase::Created);

    equipment.kernel.landlock = 1;
    node.containers.equipment.pretend(equipment);
    node.containers.start(&id).await.unwrap();
    let xml = node.hypervisor.xml(node.row(&id).domain()).unwrap();
    // The wrapper makes sure of it.
    assert!(
        xml.contains("VMLET_LANDLOCK") && xml.contains("require"),
        "{xml}"
    );
}

#[tokio::test]
async fn nothing_that_an_earlier_start_left_among_the_sockets_is_used() {
    let node = Node::new().await;
    let id = node.created().await;
    let sockets = node.containers.paths().sockets(&id);
    let target = node.containers.paths().consoles().join("target");
    std::fs::write(&target, "kept").unwrap();
    std::fs::create_dir(&sockets).unwrap();
    for name in ["console", "disks", "disk-0"] {
        std::os::unix::fs::symlink(&target, sockets.join(name)).unwrap();
    }
    node.containers.start(&id).await.unwrap();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
    let is_link = |name| sockets.join(name).is_symlink();
    assert!(!["console", "disks", "disk-0"].into_iter().any(is_link));
    let mode = std::fs::metadata(&sockets).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}
