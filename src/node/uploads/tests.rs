//! Uploads by a client of the node API, over its socket.
//!
//! Invariant: the image store is a real one; what it has is looked at beside the answers.
//! Failure: a test names what was accepted, or lost.

use nodeapi::v1::node_client::NodeClient;
use nodeapi::v1::node_server::NodeServer;
use sha2::{Digest as _, Sha256};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Channel, Server};

use super::*;
use crate::node::tests::service;
use crate::testkit::{Node, TIMEOUT};

const NAME: &str = "vmlet.dev/upload.invalid/default/web:1";

/// The node API of a node.
struct Api {
    client: NodeClient<Channel>,
    node: Node,
    _served: AbortOnDropHandle<()>,
    _dir: tempfile::TempDir,
}

/// An upload in progress.
struct Session {
    parts: Option<mpsc::Sender<v1::UploadRequest>>,
    events: Streaming<v1::UploadEvent>,
}

impl Api {
    async fn new() -> Self {
        let node = Node::new().await;
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("node.sock");
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let served = Server::builder().add_service(NodeServer::new(service(&node).await));
        let served = served.serve_with_incoming(listener);
        let served = tokio::spawn(async move { served.await.unwrap() });
        let endpoint = socket.to_str().unwrap();
        Self {
            client: nodeapi::connect(endpoint, nodeapi::Deadlines::default()).unwrap(),
            node,
            _served: AbortOnDropHandle::new(served),
            _dir: dir,
        }
    }

    async fn begin(&self, first: Part) -> Session {
        let (parts, requests) = mpsc::channel(4);
        let part = Some(first);
        parts.send(v1::UploadRequest { part }).await.unwrap();
        let requests = ReceiverStream::new(requests);
        let events = self.client.clone().upload_image(requests).await.unwrap();
        Session {
            parts: Some(parts),
            events: events.into_inner(),
        }
    }
}

impl Session {
    async fn send(&self, bytes: &[u8]) {
        let part = Some(Part::Data(bytes.to_vec()));
        let parts = self.parts.as_ref().unwrap();
        parts.send(v1::UploadRequest { part }).await.unwrap();
    }

    async fn next(&mut self) -> Result<Event, Status> {
        loop {
            let message = timeout(TIMEOUT, self.events.message()).await;
            let message = message.expect("a message in time")?;
            match message.expect("a last message").event.unwrap() {
                Event::Checking(_) => {}
                event => return Ok(event),
            }
        }
    }
}

fn announced(name: &str, bytes: &[u8]) -> Part {
    Part::Begin(v1::UploadBegin {
        name: name.to_owned(),
        size_bytes: bytes.len() as u64,
        sha256: hex(bytes),
    })
}

fn hex(bytes: &[u8]) -> String {
    Digest::from_bytes(Sha256::digest(bytes).into()).hex()
}

#[tokio::test]
async fn an_upload_is_continued_and_becomes_an_image() {
    let api = Api::new().await;
    let bytes = vec![7; 1 << 20];
    let mut first = api.begin(announced(NAME, &bytes)).await;
    assert_eq!(first.next().await.unwrap(), Event::Offset(0));
    first.send(&bytes[..1000]).await;
    first.parts = None;
    let broken = first.next().await.unwrap_err();
    assert_eq!(broken.code(), Code::Cancelled);

    let mut second = api.begin(announced(NAME, &bytes)).await;
    assert_eq!(second.next().await.unwrap(), Event::Offset(1000));
    second.send(&bytes[1000..]).await;
    let Event::Image(image) = second.next().await.unwrap() else {
        panic!("no image");
    };
    assert_eq!((image.sha256, &*image.format), (hex(&bytes), "raw"));
    assert!(api.node.images.find(NAME).is_some());
    let mut again = api.begin(announced(NAME, &bytes)).await;
    assert!(matches!(again.next().await.unwrap(), Event::Image(_)));
}

#[tokio::test]
async fn what_is_not_as_announced_is_refused_in_words() {
    let api = Api::new().await;
    let bytes = vec![7; 4096];
    let mut other = api.begin(announced(NAME, &bytes)).await;
    other.next().await.unwrap();
    other.send(&[8; 4096]).await;
    assert_eq!(other.next().await.unwrap_err().code(), Code::DataLoss);

    let page = b"<!doctype html>".repeat(100);
    let mut page_upload = api.begin(announced(NAME, &page)).await;
    page_upload.next().await.unwrap();
    page_upload.send(&page).await;
    let refused = page_upload.next().await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");

    let mut server = api
        .begin(announced("docker.io/library/debian:12", &bytes))
        .await;
    let refused = server.next().await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let mut headless = api.begin(Part::Data(bytes.clone())).await;
    let refused = headless.next().await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let mut twice = api.begin(announced(NAME, &bytes)).await;
    twice.next().await.unwrap();
    let part = Some(announced(NAME, &bytes));
    let parts = twice.parts.as_ref().unwrap();
    parts.send(v1::UploadRequest { part }).await.unwrap();
    assert_eq!(
        twice.next().await.unwrap_err().code(),
        Code::InvalidArgument
    );
    assert!(api.node.images.find(NAME).is_none());
}
