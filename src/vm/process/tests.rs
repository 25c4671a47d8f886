//! Creations of processes, with a machine that is not started.
//!
//! Invariant: the pod machine is made by the first creation; no guest is needed.
//! Failure: the container that differs.

use std::time::Duration;

use podspec::SandboxId;
use tokio::time::timeout;

use super::{Process, Profile};
use crate::guest::Start;
use crate::sandbox::PROCESS_HANDLER;
use crate::testkit::Node;
use crate::vm::Error;
use crate::vm::lifecycle::Conflict;
use crate::vm::state::Phase;

/// How long kubelet waits for an answer.
const KUBELET: Duration = Duration::from_secs(2 * 60);

async fn ready(node: &Node) -> SandboxId {
    let mut pod = node.pod("pod");
    PROCESS_HANDLER.clone_into(&mut pod.runtime_handler);
    node.sandboxes.run(pod).await.unwrap()
}

fn sleeping() -> Process {
    Process {
        start: Start::default(),
        seccomp: (Profile::Unconfined, Vec::new()),
        stdin_once: false,
        stop_signal: 15,
    }
}

#[tokio::test]
async fn a_creation_that_outlasts_its_client_is_the_answer_to_the_repeat() {
    let node = Node::new().await;
    let sandbox = ready(&node).await;
    let containers = &node.containers;
    let create = || Box::pin(containers.create_in(&sandbox, node.machine(0), sleeping()));
    let mut changes = node.rows.changes();

    // The work takes longer than that, such as the copy of an image before it.
    let busy = node.locks.lock(sandbox.as_str()).await;
    tokio::time::pause();
    timeout(KUBELET, create()).await.unwrap_err();
    tokio::time::resume();
    drop(busy);
    let is_made = |node: &Node| {
        let mut all = node.rows.all();
        all.retain(|row| row.is_process() && row.phase == Phase::Created);
        all.first().map(|row| row.id.clone())
    };
    let id = loop {
        if let Some(id) = is_made(&node) {
            break id;
        }
        changes.changed().await.unwrap();
    };
    // kubelet would take it for a container that never started, and make another attempt.
    assert!(containers.list().is_empty());

    assert_eq!(create().await.unwrap(), id);
    let listed = containers.list();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].phase, &listed[0].exit), (Phase::Created, &None));
    assert_eq!(node.rows.all().len(), 2, "the process and its machine");
    let again = create().await;
    assert!(
        matches!(again, Err(Error::Conflict(Conflict::NameTaken { .. }))),
        "{again:?}"
    );
}

#[tokio::test]
async fn a_repeat_that_comes_before_the_end_of_the_creation_waits_for_it() {
    let node = Node::new().await;
    let sandbox = ready(&node).await;
    let containers = &node.containers;
    let create = || Box::pin(containers.create_in(&sandbox, node.machine(0), sleeping()));
    let busy = node.locks.lock(sandbox.as_str()).await;
    tokio::time::pause();
    for _ in 0..2 {
        timeout(KUBELET, create()).await.unwrap_err();
    }
    let end = async {
        tokio::time::sleep(KUBELET / 2).await;
        tokio::time::resume();
        drop(busy);
    };
    let (made, ()) = tokio::join!(timeout(KUBELET, create()), end);
    let id = made.expect("within kubelet's time").unwrap();
    let listed = containers.list();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].id, &listed[0].exit), (&id, &None));
    assert_eq!(node.rows.all().len(), 2, "the process and its machine");
}

#[tokio::test]
async fn a_profile_that_does_not_answer_refuses_its_container_in_time() {
    const PROFILE: &str = "/profiles/a.json";
    let node = Node::new().await;
    let sandbox = ready(&node).await;
    let process = Process {
        seccomp: (Profile::Localhost(PROFILE.into()), Vec::new()),
        ..sleeping()
    };
    let hung = node.containers.foreign.hold(PROFILE.to_owned());
    tokio::time::pause();
    let created = node
        .containers
        .create_in(&sandbox, node.machine(0), process);
    let refused = Box::pin(created).await.unwrap_err().to_string();
    drop(hung);
    assert!(
        refused.contains("/profiles/a.json did not answer within"),
        "{refused}"
    );
    assert!(node.rows.all().is_empty());
}
