//! Everything at once for the same pods: requests that contradict each other, ends of guests,
//! rounds.
//!
//! Invariant: nothing hangs, and after the last removal nothing is left.
//! Failure: the deadline, or what is left.

use std::sync::Arc;
use std::time::Duration;

use podspec::ContainerId;

use crate::testkit::{Node, TIMEOUT};
use crate::vm::state::Phase;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contradicting_requests_neither_hang_nor_leave_anything() {
    let node = Arc::new(Node::new().await);
    let pods = (0..8).map(|n| {
        let node = Arc::clone(&node);
        tokio::spawn(async move { Box::pin(live(&node, n)).await })
    });
    let pods: Vec<_> = pods.collect();
    let rounds = Arc::clone(&node);
    let rounds = tokio::spawn(async move {
        loop {
            // What a round meets half-way may fail; the last ones may not.
            let _ = rounds.containers.reconcile().await;
            let _ = rounds.sandboxes.reconcile().await;
        }
    });
    for pod in pods {
        tokio::time::timeout(TIMEOUT, pod)
            .await
            .expect("in time")
            .unwrap();
    }
    rounds.abort();
    // Its work is dropped before this one begins.
    rounds.await.unwrap_err();
    node.containers.reconcile().await.unwrap();
    node.sandboxes.reconcile().await.unwrap();
    assert!(node.rows.all().is_empty() && node.sandbox_rows.all().is_empty());
    assert!(node.files().is_empty(), "{:?}", node.files());
    assert!(node.network.ids().is_empty() && node.images.owners().is_empty());
}

/// One pod, whose requests come from several clients at once.
async fn live(node: &Node, n: usize) {
    let pod = node.pod(&format!("pod {n}"));
    let run = || node.sandboxes.run(pod.clone());
    let (sandbox, same) = tokio::join!(run(), run());
    let sandbox = sandbox.unwrap();
    assert_eq!(same.unwrap(), sandbox);
    for attempt in 0..4 {
        let create = || node.containers.create(&sandbox, node.machine(attempt));
        let (one, other) = tokio::join!(create(), create());
        let id = one.or(other).expect("one of them makes it");
        let start = || node.containers.start(&id);
        let (one, other) = tokio::join!(start(), start());
        one.and(other).unwrap();
        match attempt {
            // The guest powers off at the moment of the request.
            0 => {
                let off = async { node.hypervisor.power_off(id.domain()) };
                let (stopped, ()) = tokio::join!(node.containers.stop(&id, HOUR), off);
                stopped.unwrap();
                assert_eq!(node.exit(&id), (0, "Completed".to_owned()));
            }
            1 => {
                let stop = |grace| node.containers.stop(&id, grace);
                let (long, none) = tokio::join!(stop(HOUR), stop(Duration::ZERO));
                long.and(none).unwrap();
                assert_eq!(node.phase(&id), Phase::Exited);
            }
            2 => {
                let remove = || node.containers.remove(&id);
                let stop = node.containers.stop(&id, HOUR);
                let (one, other, stopped) = tokio::join!(remove(), remove(), stop);
                one.and(other).and(stopped).unwrap();
                assert!(node.rows.get(&id).is_none());
            }
            _ => end(node, &sandbox, &id).await,
        }
    }
}

async fn end(node: &Node, sandbox: &podspec::SandboxId, id: &ContainerId) {
    let (stopped, removed, gone) = tokio::join!(
        node.sandboxes.stop(sandbox),
        node.containers.remove(id),
        node.sandboxes.remove(sandbox),
    );
    // The second caller may get an error, but can repeat the call.
    let _ = (stopped, removed, gone);
    node.sandboxes.remove(sandbox).await.unwrap();
}
