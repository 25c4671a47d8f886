//! Changes of resources of machines that run and that do not.
//!
//! Invariant: what the status shows is what is in force.
//! Failure: a change that is stored and not made, or made and not stored.

use podspec::PodResources;

use crate::testkit::Node;
use crate::vm::{Error, LinuxResources};

pub(super) fn cpus(list: &str) -> LinuxResources {
    LinuxResources {
        cpuset_cpus: list.to_owned(),
        ..LinuxResources::default()
    }
}

pub(super) fn quota(cpus: i64) -> LinuxResources {
    LinuxResources {
        cpu_quota: cpus * 100_000,
        cpu_period: 100_000,
        ..LinuxResources::default()
    }
}

pub(super) fn memory(mib: i64) -> LinuxResources {
    LinuxResources {
        memory_limit_in_bytes: mib << 20,
        ..LinuxResources::default()
    }
}

#[tokio::test]
async fn a_running_machine_is_moved_to_other_cpus_and_remembers_them() {
    let node = Node::new().await;
    let id = node.started().await;
    node.containers.update(&id, cpus("1-2")).await.unwrap();
    assert_eq!(node.hypervisor.pinned(id.domain()), [1, 2]);
    let shares = LinuxResources {
        cpu_shares: 512,
        ..LinuxResources::default()
    };
    node.containers.update(&id, shares).await.unwrap();
    let node = node.restarted().await;
    let row = node.row(&id);
    let now = row.resources();
    assert_eq!((now.cpuset_cpus.as_str(), now.cpu_shares), ("1-2", 512));
}

#[tokio::test]
async fn a_machine_that_does_not_run_starts_on_the_cpus_that_it_was_given() {
    let node = Node::new().await;
    let id = node.created().await;
    node.containers.update(&id, cpus("0,3")).await.unwrap();
    node.containers.start(&id).await.unwrap();
    let xml = node.hypervisor.xml(id.domain()).unwrap();
    assert!(xml.contains(r#"cpuset="0,3""#), "{xml}");
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_and_not_stored() {
    let node = Node::new().await;
    let id = node.started().await;
    for update in [memory(256), quota(2), cpus("a-b")] {
        let refused = node.containers.update(&id, update).await;
        assert!(matches!(refused, Err(Error::Resize { .. })), "{refused:?}");
    }
    assert_eq!(*node.row(&id).resources(), LinuxResources::default());
    node.containers.update(&id, quota(1)).await.unwrap();
    node.hypervisor.disconnect();
    node.containers.update(&id, cpus("1")).await.unwrap_err();
    assert_eq!(node.row(&id).resources().cpuset_cpus, "");
}

#[tokio::test]
async fn a_resize_beyond_the_machine_is_refused_while_it_runs() {
    let node = Node::new().await;
    let id = node.started().await;
    let sandbox = node.row(&id).sandbox.clone();
    let more = PodResources {
        memory_limit: 1 << 30,
        ..PodResources::default()
    };
    assert!(node.containers.check_resize(&sandbox, more).is_err());
    let same = PodResources::default();
    node.containers.check_resize(&sandbox, same).unwrap();
    node.sandboxes.stop(&sandbox).await.unwrap();
    node.containers.check_resize(&sandbox, more).unwrap();
}
