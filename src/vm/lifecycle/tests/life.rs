//! A machine from its creation to its removal.
//!
//! Invariant: what a client sees is what happened; nothing is left afterwards.
//! Failure: the step that differs.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use libvirt::State;

use crate::testkit::Node;
use crate::vm::Error;
use crate::vm::lifecycle::Conflict;
use crate::vm::state::Phase;

const GRACE: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_machine_is_created_run_and_deleted_without_leftovers() {
    let node = Node::new().await;
    let id = node.created().await;
    assert_eq!(node.phase(&id), Phase::Created);
    assert_eq!(node.domain(&id).await, None, "libvirt is not asked yet");
    assert_eq!(node.counted().await.len(), 1);

    node.containers.start(&id).await.unwrap();
    assert_eq!(node.phase(&id), Phase::Running);
    assert_eq!(node.domain(&id).await, Some(State::Active));
    let xml = node.hypervisor.xml(id.domain()).unwrap();
    let token = format!("{:064x}", 1);
    assert!(xml.contains(&token) && xml.contains("root.qcow2"), "{xml}");
    assert!(node.containers.paths().console_file(&id).exists());
    let started = node.row(&id).started_at;

    node.containers.stop(&id, GRACE).await.unwrap();
    assert_eq!(node.exit(&id), (0, "Completed".to_owned()));
    let row = node.row(&id);
    assert!(row.created_at <= started && 0 < started && started <= row.finished_at);

    node.containers.remove(&id).await.unwrap();
    assert!(node.rows.get(&id).is_none());
    assert_eq!(node.domain(&id).await, None);

    node.sandboxes.remove(&row.sandbox).await.unwrap();
    assert!(node.sandboxes.list().is_empty());
    assert!(node.files().is_empty(), "{:?}", node.files());
    assert!(node.images.owners().is_empty() && node.network.ids().is_empty());
    assert!(node.counted().await.is_empty());
}

#[tokio::test]
async fn a_second_machine_waits_until_the_first_has_ended_and_boots_the_same_disk() {
    let node = Node::new().await;
    let first = node.started().await;
    let sandbox = node.row(&first).sandbox.clone();
    let second = node.containers.create(&sandbox, node.machine(1)).await;
    let second = second.unwrap_err();
    let words = second.to_string();
    let begins = "pod default/pod has a virtual machine already, container vm (running): a pod has";
    assert!(
        words.starts_with(begins) && words.ends_with("RuntimeClass vmlet-process"),
        "{words}"
    );
    let Error::Conflict(Conflict::Live { container, .. }) = second else {
        panic!("two machines in a sandbox: {words}");
    };
    assert_eq!(container, first);
    let disk = node.containers.paths().root_disk(&sandbox);
    let inode = disk.metadata().unwrap().ino();

    node.containers.stop(&first, GRACE).await.unwrap();
    let second = node.containers.create(&sandbox, node.machine(1)).await;
    node.containers.start(&second.unwrap()).await.unwrap();
    assert_eq!(disk.metadata().unwrap().ino(), inode);
}

#[tokio::test]
async fn after_a_machine_has_ended_a_container_of_another_name_is_refused() {
    let node = Node::new().await;
    let first = node.started().await;
    let sandbox = node.row(&first).sandbox.clone();
    node.containers.stop(&first, GRACE).await.unwrap();
    let mut other = node.machine(0);
    other.metadata.name = "main".to_owned();
    let refused = node.containers.create(&sandbox, other.clone()).await;
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, Error::Conflict(Conflict::OtherName { .. })),
        "{refused:?}"
    );
    let words = refused.to_string();
    let begins = "container main cannot boot the disk of pod default/pod, whose virtual machine is \
                  container vm: a pod has one container";
    assert!(
        words.starts_with(begins) && words.ends_with("RuntimeClass vmlet-process"),
        "{words}"
    );
    let second = node.containers.create(&sandbox, node.machine(1)).await;
    assert!(second.is_ok(), "{second:?}");
}

#[tokio::test]
async fn places_of_machines_have_any_names() {
    let node = Node::new().await;
    let sandbox = node.annotated("pod", &[("role", "provision")]).await;
    for name in ["first", "second"] {
        let mut config = node.machine(0);
        config.metadata.name = name.to_owned();
        let id = node.containers.create(&sandbox, config).await.unwrap();
        node.containers.start(&id).await.unwrap();
        node.containers.stop(&id, GRACE).await.unwrap();
    }
}

#[tokio::test]
async fn a_guest_that_powers_off_has_its_whole_console_output() {
    let node = Node::new().await;
    let id = node.started().await;
    let console = node.containers.paths().console_file(&id);
    std::fs::write(&console, "first\nlast words").unwrap();
    node.hypervisor.power_off(id.domain());
    node.until(&id, |row| row.phase == Phase::Exited).await;
    assert_eq!(node.exit(&id), (0, "Completed".to_owned()));
    let log = std::fs::read_to_string(&node.row(&id).spec.log_path).unwrap();
    let text: Vec<_> = log
        .lines()
        .filter_map(|l| l.splitn(4, ' ').nth(3))
        .collect();
    assert_eq!(text, ["first", "last words"]);
}

#[tokio::test]
async fn a_killed_emulator_has_exited_with_137_and_a_reason() {
    let node = Node::new().await;
    let id = node.started().await;
    node.hypervisor.crash(id.domain());
    node.until(&id, |row| row.phase == Phase::Exited).await;
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
    assert!(!node.row(&id).exit.as_ref().unwrap().message.is_empty());
}

#[tokio::test]
async fn requests_may_be_repeated() {
    let node = Node::new().await;
    let id = node.started().await;
    node.containers.start(&id).await.unwrap();
    assert_eq!(node.network.starts().len(), 1);
    for _ in 0..2 {
        node.containers.stop(&id, GRACE).await.unwrap();
    }
    let again = node.containers.start(&id).await;
    assert!(
        matches!(&again, Err(Error::Phase { phase, .. }) if *phase == Phase::Exited),
        "a machine runs once: {again:?}"
    );
    for _ in 0..2 {
        node.containers.remove(&id).await.unwrap();
    }
    node.containers.stop(&id, GRACE).await.unwrap();
}

#[tokio::test]
async fn removing_a_running_machine_kills_it() {
    let node = Node::new().await;
    let id = node.started().await;
    node.containers.remove(&id).await.unwrap();
    assert_eq!((node.rows.get(&id), node.domain(&id).await), (None, None));
    let paths = node.containers.paths();
    assert!(!paths.console_file(&id).exists() && !paths.sockets(&id).exists());
}

#[tokio::test]
async fn a_log_can_be_reopened_while_the_machine_runs_and_not_afterwards() {
    let node = Node::new().await;
    let id = node.started().await;
    let log = node.row(&id).spec.log_path.clone();
    std::fs::rename(&log, log.with_extension("old")).unwrap();
    node.containers.reopen_log(&id).await.unwrap();
    assert!(log.exists());

    let node = node.restarted().await;
    std::fs::remove_file(&log).unwrap();
    node.containers.reopen_log(&id).await.unwrap();
    assert!(log.exists(), "also before the first look at libvirt");

    node.containers.stop(&id, GRACE).await.unwrap();
    let refused = node.containers.reopen_log(&id).await;
    assert!(matches!(refused, Err(Error::Phase { .. })), "{refused:?}");
}
