//! What the node API says of the node.
//!
//! Invariant: no call waits for a helper.
//! Failure: as of the other tests of the node API.

use nodeapi::v1::host::Readiness;
use nodeapi::v1::node_server::Node as _;
use nodeapi::v1::{InfoRequest, InfoResponse};

use super::*;

async fn info(service: &Service<Fake>) -> InfoResponse {
    let answer = service.info(tonic::Request::new(InfoRequest {})).await;
    answer.unwrap().into_inner()
}

#[tokio::test]
async fn the_node_is_described_as_the_last_check_found_it() {
    let node = Node::new().await;
    let service = service(&node).await;
    assert_eq!(info(&service).await.host, None, "before the first check");
    let health = Arc::clone(&service.services().health);
    health.check().await;
    let host = info(&service).await.host.unwrap();
    // The wrapper of tests does not exist.
    assert_eq!(
        (host.readiness(), host.reason.as_str()),
        (Readiness::NotReady, "NoMachineCanStart")
    );
    assert!(
        host.message.contains("cannot be executed"),
        "{}",
        host.message
    );
    assert!(host.kernel.is_some());

    node.hypervisor.disconnect();
    assert_eq!(info(&service).await.host, Some(host), "memory answers");
    health.check().await;
    let host = info(&service).await.host.unwrap();
    assert_eq!(host.reason, "HypervisorUnavailable");
}

#[tokio::test]
async fn what_libvirt_offers_is_listed() {
    let node = Node::new().await;
    let service = service(&node).await;
    node.containers.choose_accelerator().await.unwrap();
    node.containers.look_at_offer().await;
    service.services().health.check().await;
    let info = info(&service).await;
    assert_eq!(info.machine_types, ["pc-q35-7.1", "pc-q35-7.2"]);
    assert_eq!(info.host.unwrap().cpu_models, ["qemu64"]);
}
