//! Copies of images by emulators that answer late, or not at all.
//!
//! Invariant: the clock of a test stands, but for what is waited for.
//! Failure: a test names what was taken for ended, or waits without end.

use std::time::Duration;

use futures_util::poll;
use podspec::VmUid;
use tokio::time::Instant;

use crate::disk::Phase;
use crate::testkit::Node;
use crate::vm::Error;
use crate::vm::power::LayerError;

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

fn vm() -> VmUid {
    VM.parse().unwrap()
}

/// A machine that runs on a linked disk.
async fn machine() -> Node {
    let node = Node::new().await;
    node.make_disk(vm()).await;
    let sandbox = node.annotated("pod", &[("vm-disk", VM)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    node
}

/// The caller leaves while libvirtd may still have the request.
#[tokio::test]
async fn a_request_whose_caller_has_left_may_be_carried_out_for_some_time() {
    let node = machine().await;
    node.hypervisor.hold_pulls();
    let mut promotion = Box::pin(node.containers.promote_online(vm(), 0, |_| {}));
    while node.hypervisor.held_pulls() == 0 {
        assert!(poll!(&mut promotion).is_pending());
        tokio::task::yield_now().await;
    }
    drop(promotion);
    tokio::time::pause();
    let since = Instant::now();
    node.containers.late_requests.outlast(vm()).await;
    assert!(since.elapsed() > Duration::from_secs(30));
    tokio::time::resume();
    assert!(node.disks.is_pulled(vm()));
    assert!(!node.containers.abandon_promotion(vm()).await.unwrap());
    let disk = node.disks.get(vm()).unwrap();
    assert!(disk.linked && disk.phase == Phase::Ready, "{disk:?}");
}

#[tokio::test]
async fn a_copy_without_progress_ends() {
    let node = machine().await;
    node.hypervisor.hold_jobs(true);
    let mut promotion = Box::pin(node.containers.promote_online(vm(), 0, |_| {}));
    while !node.hypervisor.has_job(vm().uuid()) {
        assert!(poll!(&mut promotion).is_pending());
        tokio::task::yield_now().await;
    }
    tokio::time::pause();
    let error = promotion.await.unwrap_err();
    tokio::time::resume();
    assert!(
        matches!(error, Error::Layers(LayerError::NotPulled { .. })),
        "{error:?}"
    );
    let words = crate::one_line(&error);
    assert!(words.contains("copied nothing for 600 s"), "{words}");
    assert!(!node.containers.abandon_promotion(vm()).await.unwrap());
    assert!(!node.hypervisor.has_job(vm().uuid()));
}
