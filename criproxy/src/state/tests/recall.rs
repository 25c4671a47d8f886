//! Last-known lists and statuses, before and after restarts and reboots.
//!
//! Invariant: as of [`super`].
//! Failure: as of [`super`].

use v1::ContainerState::{ContainerExited as Exited, ContainerRunning as Running};

use super::super::owners::GRACE;
use super::*;

#[test]
fn never_connected_lost_nothing_and_known_are_four_things() {
    let (dir, memory) = fresh();
    assert_eq!(
        memory.last_list(VM, Kind::Sandbox),
        LastKnown::NeverConnected
    );
    memory.connected(VM);
    assert_eq!(memory.last_list(VM, Kind::Sandbox), LastKnown::Lost);
    flush(&memory);
    assert!(dir.path().join("vmlet/connected").exists());
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&[]));
    assert_eq!(memory.last_list(VM, Kind::Sandbox), LastKnown::OwnedNothing);
    let list = sandboxes(&["s1"]);
    memory.store_list(VM, Kind::Sandbox, &list);
    assert_eq!(
        memory.last_list(VM, Kind::Sandbox),
        LastKnown::Known(list.clone())
    );
    assert_eq!(memory.last_list(VM, Kind::Image), LastKnown::Lost);
    drop(memory);
    let memory = open(&dir, "boot-1");
    assert_eq!(memory.last_list(VM, Kind::Sandbox), LastKnown::Known(list));
    assert_eq!(memory.last_list(VM, Kind::Container), LastKnown::Lost);
    assert_eq!(memory.owner(Kind::Sandbox, "s1"), Owner::One(VM));
    assert_eq!(memory.owner_of_uid("uid-s1"), Some(VM));
}

#[test]
fn the_primary_is_learned_from_and_never_answered_with() {
    let (dir, memory) = fresh();
    memory.store_list(BackendIndex::PRIMARY, Kind::Sandbox, &sandboxes(&["c1"]));
    memory.learn(Kind::Container, "c2", BackendIndex::PRIMARY);
    assert_eq!(
        memory.last_list(BackendIndex::PRIMARY, Kind::Sandbox),
        LastKnown::Lost
    );
    let status = container_status("c2", Running);
    memory.store_status(BackendIndex::PRIMARY, Kind::Container, "c2", &status);
    assert_eq!(
        memory.last_status(BackendIndex::PRIMARY, Kind::Container, "c2"),
        None
    );
    drop(memory);
    let names: Vec<_> = std::fs::read_dir(dir.path().join("containerd"))
        .unwrap()
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let memory = open(&dir, "boot-1");
    assert_eq!(
        memory.owner(Kind::Sandbox, "c1"),
        Owner::One(BackendIndex::PRIMARY)
    );
    assert_eq!(
        memory.owner(Kind::Container, "c2"),
        Owner::One(BackendIndex::PRIMARY)
    );
}

#[test]
fn garbage_changes_nothing() {
    let (_dir, memory) = fresh();
    let list = sandboxes(&["s1"]);
    memory.store_list(VM, Kind::Sandbox, &list);
    memory.store_list(
        VM,
        Kind::Sandbox,
        &Bytes::from_static(b"HTTP/1.1 400 Bad Request"),
    );
    memory.store_list(VM, Kind::Sandbox, &list.slice(..list.len() - 1));
    memory.store_status(VM, Kind::Sandbox, "s1", &Bytes::from_static(b"\xff\xff"));
    memory.store_status(
        VM,
        Kind::Container,
        "other",
        &container_status("c1", Running),
    );
    memory.store_list(BackendIndex(7), Kind::Sandbox, &list);
    memory.learn(Kind::Sandbox, "x", BackendIndex(7));
    assert_eq!(memory.last_list(VM, Kind::Sandbox), LastKnown::Known(list));
    assert_eq!(memory.last_status(VM, Kind::Sandbox, "s1"), None);
    assert_eq!(memory.owner(Kind::Container, "c1"), Owner::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_status_is_answered_while_list_and_status_agree() {
    let (dir, memory) = fresh();
    memory.store_list(VM, Kind::Container, &containers(&[("c1", Running)]));
    let running = container_status("c1", Running);
    memory.store_status(VM, Kind::Container, "c1", &running);
    assert_eq!(
        memory.last_status(VM, Kind::Container, "c1"),
        Some(running.clone())
    );
    drop(memory);
    let memory = open(&dir, "boot-1");
    assert_eq!(
        memory.last_status(VM, Kind::Container, "c"),
        Some(running),
        "by prefix"
    );
    memory.store_list(VM, Kind::Container, &containers(&[("c1", Exited)]));
    assert_eq!(
        memory.last_status(VM, Kind::Container, "c1"),
        None,
        "an old status of a new state"
    );
    let exited = container_status("c1", Exited);
    memory.store_status(VM, Kind::Container, "c", &exited);
    assert_eq!(memory.last_status(VM, Kind::Container, "c1"), Some(exited));
    tokio::time::advance(GRACE).await;
    memory.store_list(VM, Kind::Container, &containers(&[]));
    assert_eq!(memory.last_status(VM, Kind::Container, "c1"), None);
}

#[test]
fn what_was_removed_is_in_no_list_and_has_no_status() {
    let (dir, memory) = fresh();
    memory.store_list(
        VM,
        Kind::Container,
        &containers(&[("c1", Exited), ("c2", Running)]),
    );
    memory.store_status(VM, Kind::Container, "c1", &container_status("c1", Exited));
    memory.forget(Kind::Container, "c1");
    drop(memory);
    let memory = open(&dir, "boot-1");
    let left = containers(&[("c2", Running)]);
    assert_eq!(
        memory.last_list(VM, Kind::Container),
        LastKnown::Known(left)
    );
    assert_eq!(memory.last_status(VM, Kind::Container, "c1"), None);
    memory.forget(Kind::Container, "c2");
    assert_eq!(
        memory.last_list(VM, Kind::Container),
        LastKnown::OwnedNothing
    );
}

#[test]
fn what_was_just_made_is_in_the_list_already() {
    let (_dir, memory) = fresh();
    memory.store_created(VM, Kind::Sandbox, &sandbox("early").encode_to_vec());
    assert_eq!(
        memory.last_list(VM, Kind::Sandbox),
        LastKnown::NeverConnected
    );
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&[]));
    memory.store_created(VM, Kind::Sandbox, &sandbox("s1").encode_to_vec());
    memory.store_created(VM, Kind::Sandbox, &sandbox("s1").encode_to_vec());
    assert_eq!(
        memory.last_list(VM, Kind::Sandbox),
        LastKnown::Known(sandboxes(&["s1"]))
    );
    assert_eq!(memory.owner(Kind::Sandbox, "s1"), Owner::One(VM));
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&["s1", "s2"]));
    memory.store_created(VM, Kind::Sandbox, &sandbox("s2").encode_to_vec());
    assert_eq!(
        memory.last_list(VM, Kind::Sandbox),
        LastKnown::Known(sandboxes(&["s1", "s2"]))
    );
}

#[test]
fn after_a_reboot_nothing_runs() {
    let (dir, memory) = fresh();
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&["s1"]));
    memory.store_list(VM, Kind::Container, &containers(&[("c1", Running)]));
    memory.store_list(VM, Kind::Image, &images(&[("i1", "os:1")]));
    memory.store_status(VM, Kind::Container, "c1", &container_status("c1", Running));
    drop(memory);
    // The second run of the new boot reads what the first one has rewritten.
    for _ in 0..2 {
        let memory = open(&dir, "boot-2\n");
        let LastKnown::Known(list) = memory.last_list(VM, Kind::Sandbox) else {
            panic!("lost")
        };
        let list = v1::ListPodSandboxResponse::decode(list).unwrap();
        assert_eq!(list.items[0].state(), v1::PodSandboxState::SandboxNotready);
        let ended = containers(&[("c1", Exited)]);
        let LastKnown::Known(list) = memory.last_list(VM, Kind::Container) else {
            panic!("lost")
        };
        assert_eq!(
            v1::ListContainersResponse::decode(list).unwrap(),
            v1::ListContainersResponse::decode(ended).unwrap()
        );
        let status = memory.last_status(VM, Kind::Container, "c1").unwrap();
        let status = v1::ContainerStatusResponse::decode(status)
            .unwrap()
            .status
            .unwrap();
        assert_eq!((status.exit_code, status.reason.as_str()), (255, "Unknown"));
        assert!(status.finished_at > 0);
        assert_eq!(
            memory.last_list(VM, Kind::Image),
            LastKnown::Known(images(&[("i1", "os:1")]))
        );
    }
    let memory = open(&dir, "");
    assert!(matches!(
        memory.last_list(VM, Kind::Sandbox),
        LastKnown::Known(_)
    ));
}

#[test]
fn what_was_lost_stays_lost_until_a_reboot() {
    let (dir, memory) = fresh();
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&["s1"]));
    drop(memory);
    std::fs::write(dir.path().join("vmlet/sandboxes.list"), b"scrambled").unwrap();
    for _ in 0..2 {
        assert_eq!(
            open(&dir, "boot-1").last_list(VM, Kind::Sandbox),
            LastKnown::Lost
        );
    }
    for _ in 0..2 {
        let memory = open(&dir, "boot-2");
        assert_eq!(memory.last_list(VM, Kind::Sandbox), LastKnown::OwnedNothing);
    }
}

#[test]
fn a_directory_that_cannot_be_written_costs_persistence_and_nothing_else() {
    let (dir, memory) = fresh();
    flush(&memory);
    std::fs::remove_dir_all(dir.path().join("vmlet")).unwrap();
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&["s1"]));
    assert!(!memory.flush(Duration::from_millis(300)));
    assert_eq!(
        memory.last_list(VM, Kind::Sandbox),
        LastKnown::Known(sandboxes(&["s1"]))
    );
    std::fs::create_dir(dir.path().join("vmlet")).unwrap();
    flush(&memory);
    drop(memory);
    let memory = open(&dir, "boot-1");
    assert_eq!(
        memory.last_list(VM, Kind::Sandbox),
        LastKnown::Known(sandboxes(&["s1"]))
    );
}
