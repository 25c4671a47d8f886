//! Ends by lack of memory, found by the counter of the pod's cgroup.
//!
//! Invariant: the cgroup is a directory that looks like one of version 2.
//! Failure: an exit with the wrong reason.

use std::path::PathBuf;

use podspec::ContainerId;

use crate::testkit::Node;
use crate::vm::state::Phase;

struct Pod(PathBuf);

impl Pod {
    /// The pod's cgroup, whose kernel has killed `kills` processes.
    fn make(node: &Node, kills: u32) -> Self {
        let root = node.cgroup_root();
        let pod = root.join("kubepods/pod1");
        std::fs::create_dir_all(&pod).unwrap();
        std::fs::write(root.join("cgroup.controllers"), "memory").unwrap();
        let this = Self(pod);
        this.kills(kills);
        this
    }

    fn kills(&self, kills: u32) {
        let text = format!("oom 1\noom_kill {kills}\n");
        std::fs::write(self.0.join("memory.events"), text).unwrap();
    }
}

async fn started(node: &Node) -> ContainerId {
    let mut pod = node.pod("pod");
    pod.cgroup_parent = "/kubepods/pod1".to_owned();
    let sandbox = node.sandboxes.run(pod).await.unwrap();
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    id
}

async fn crashed(node: &Node, id: &ContainerId) -> (i32, String) {
    node.hypervisor.crash(id.domain());
    node.until(id, |row| row.phase == Phase::Exited).await;
    node.exit(id)
}

#[tokio::test]
async fn an_oom_kill_is_reported_also_after_a_restart_of_the_daemon() {
    let node = Node::new().await;
    let pod = Pod::make(&node, 3);
    let id = started(&node).await;
    let node = node.restarted().await;
    pod.kills(4);
    assert_eq!(crashed(&node, &id).await, (137, "OOMKilled".to_owned()));
}

#[tokio::test]
async fn an_emulator_that_died_otherwise_does_not_whatever_happened_before() {
    let node = Node::new().await;
    let _pod = Pod::make(&node, 3);
    let id = started(&node).await;
    assert_eq!(crashed(&node, &id).await, (137, "Error".to_owned()));
}

#[tokio::test]
async fn a_cgroup_that_does_not_answer_delays_an_end_for_a_moment_only() {
    let node = Node::new().await;
    let pod = Pod::make(&node, 3);
    let id = started(&node).await;
    pod.kills(4);
    tokio::time::pause();
    let containers = &node.containers;
    let hung = containers.meter.hold_cgroup(node.row(&id).sandbox.clone());
    assert!(!containers.was_killed_for_memory(&id).await);
    drop(hung);
    assert!(containers.was_killed_for_memory(&id).await);
}
