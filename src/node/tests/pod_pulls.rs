//! The stream of the pulls that pods wait for.
//!
//! Invariant: a client that comes later gets what one that is there already has.
//! Failure: as of the other tests of the node API.

use nodeapi::v1::node_server::Node as _;
use nodeapi::v1::{Pull, PullEvent, WatchPullsRequest};
use tokio_stream::StreamExt as _;

use super::*;
use crate::images::{Locator, Requester};

type Stream = <Service<Fake> as nodeapi::v1::node_server::Node>::WatchPullsStream;

async fn watch(service: &Service<Fake>) -> Stream {
    let request = tonic::Request::new(WatchPullsRequest {});
    service.watch_pulls(request).await.unwrap().into_inner()
}

async fn next(stream: &mut Stream) -> PullEvent {
    let next = tokio::time::timeout(TIMEOUT, stream.next()).await;
    next.expect("a message in time").unwrap().unwrap()
}

#[tokio::test]
async fn clients_follow_the_pulls_of_pods_and_no_others() {
    let node = Node::new().await;
    let service = service(&node).await;
    let synced = PullEvent {
        synced: true,
        ..PullEvent::default()
    };
    let mut early = watch(&service).await;
    assert_eq!(next(&mut early).await, synced);

    let images = Arc::clone(&node.images);
    let image = node.image("half");
    let own = AbortOnDropHandle::new(tokio::spawn({
        let images = Arc::clone(&images);
        let image = image.clone();
        async move { images.pull(&image).await }
    }));
    let part = |text: &str| text.to_owned();
    let pod = Requester::new(part("ns"), part("vm"), part("u"));
    let of_pod = AbortOnDropHandle::new(tokio::spawn({
        let image = image.clone();
        async move {
            let locator = Locator::from(&image);
            images.pull_for(pod, locator, None).await
        }
    }));
    let event = next(&mut early).await;
    let pull = event.pull.clone().unwrap();
    assert_eq!(
        pull,
        Pull {
            id: pull.id.clone(),
            pod_namespace: part("ns"),
            pod_name: part("vm"),
            pod_uid: part("u"),
            image,
            received_bytes: 2048,
            total_bytes: 4096,
        }
    );
    let mut late = watch(&service).await;
    assert_eq!(next(&mut late).await, event);
    assert_eq!(next(&mut late).await, synced);
    drop(of_pod);
    let ended = PullEvent {
        pull: Some(Pull {
            id: pull.id,
            ..Pull::default()
        }),
        gone: true,
        ..PullEvent::default()
    };
    assert_eq!(next(&mut early).await, ended);
    assert_eq!(next(&mut late).await, ended);
    drop(own);
}
