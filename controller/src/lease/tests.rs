//! The lease over an API server that is a table of one row.
//!
//! Invariant: time does not advance except where a test lets it pass.
//! Failure: the assertion states who believed what.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as Object;
use kube::Client;
use kube::client::Body;
use tokio_util::sync::CancellationToken;
use tower::{Layer, Service, ServiceExt};

use super::state::{Election, Step};
use super::{Fence, FenceLayer, Lease, Lost};
use crate::config::Lease as Settings;

/// The object and whether the server answers.
#[derive(Default)]
struct Server {
    lease: Option<Object>,
    version: u64,
    is_away: bool,
}

type Shared = Arc<Mutex<Server>>;

fn client(server: &Shared) -> Client {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (head, body) = request.into_parts();
            if server.lock().unwrap().is_away {
                std::future::pending::<()>().await;
            }
            let body = body.collect_bytes().await.unwrap();
            let mut server = server.lock().unwrap();
            Ok::<_, std::convert::Infallible>(server.answer(&head.method, &body))
        }
    });
    Client::new(service, "default")
}

impl Server {
    fn answer(&mut self, method: &Method, body: &[u8]) -> Response<Body> {
        let refuse = |code: StatusCode, reason: &str| {
            let text = serde_json::json!({
                "kind": "Status", "status": "Failure", "code": code.as_u16(),
                "reason": reason, "message": "no",
            });
            reply(code, text.to_string())
        };
        if *method == Method::GET {
            return match &self.lease {
                Some(lease) => reply(StatusCode::OK, serde_json::to_string(lease).unwrap()),
                None => refuse(StatusCode::NOT_FOUND, "NotFound"),
            };
        }
        let mut written: Object = serde_json::from_slice(body).unwrap();
        let version = |lease: &Object| lease.metadata.resource_version.clone();
        if self.lease.as_ref().and_then(version) != version(&written) {
            return refuse(StatusCode::CONFLICT, "Conflict");
        }
        self.version += 1;
        written.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(written.clone());
        reply(StatusCode::OK, serde_json::to_string(&written).unwrap())
    }
}

fn reply(code: StatusCode, text: String) -> Response<Body> {
    let body = Body::from(text.into_bytes());
    Response::builder().status(code).body(body).unwrap()
}

fn lease(server: &Shared, identity: &str) -> Lease {
    Lease::new(client(server), "default", &Settings::default(), identity)
}

fn holder(server: &Shared) -> Option<String> {
    let server = server.lock().unwrap();
    let spec = server.lease.as_ref()?.spec.clone()?;
    spec.holder_identity
}

#[tokio::test(start_paused = true)]
async fn the_second_waits_until_the_first_gives_the_lease_back() {
    let server = Shared::default();
    let stop = CancellationToken::new();
    let mut a = lease(&server, "a");
    let mut b = lease(&server, "b");
    assert!(a.acquire(&stop).await);
    let waiting = tokio::time::timeout(Duration::from_secs(5), b.acquire(&stop)).await;
    assert!(waiting.is_err() && b.fence().pass().is_err());
    a.release().await;
    assert!(b.acquire(&stop).await);
    assert_eq!(holder(&server).as_deref(), Some("b"));
    assert_eq!(a.fence().pass(), Err(Lost));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_renews_keeps_the_lease_for_as_long_as_it_likes() {
    let server = Shared::default();
    let stop = CancellationToken::new();
    let mut a = lease(&server, "a");
    let mut b = lease(&server, "b");
    assert!(a.acquire(&stop).await);
    let ten_minutes = Duration::from_secs(600);
    tokio::select! {
        _ = a.hold() => panic!("lost"),
        _ = b.acquire(&stop) => panic!("two holders"),
        () = tokio::time::sleep(ten_minutes) => {}
    }
    assert!(a.fence().pass().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_stops_before_another_holder_starts() {
    let server = Shared::default();
    let stop = CancellationToken::new();
    let mut a = lease(&server, "a");
    let mut b = lease(&server, "b");
    assert!(a.acquire(&stop).await);
    let fence = a.fence();
    // The second one saw the lease just after it was renewed for the last time, on another network.
    let watcher = Arc::new(Mutex::new(Server {
        lease: server.lock().unwrap().lease.clone(),
        version: 1,
        is_away: false,
    }));
    b.api = lease(&watcher, "b").api;
    server.lock().unwrap().is_away = true;
    let takes_over = tokio::spawn(async move { b.acquire(&CancellationToken::new()).await });
    assert_eq!(a.hold().await, Lost);
    assert_eq!(fence.pass(), Err(Lost));
    assert!(!takes_over.is_finished());
    assert!(takes_over.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn of_two_that_take_an_orphaned_lease_at_once_one_is_refused() {
    let server = Shared::default();
    let mut elections = ["a", "b"].map(|name| Election::new(name, "lease", 15));
    let read = server.lock().unwrap().lease.clone();
    let steps = elections
        .each_mut()
        .map(|e| e.observe(read.clone(), Duration::ZERO, Timestamp::UNIX_EPOCH));
    let answers = steps.map(|step| {
        let (Step::Create(lease) | Step::Update(lease)) = step else {
            panic!("waits");
        };
        let body = serde_json::to_vec(&lease).unwrap();
        server.lock().unwrap().answer(&Method::PUT, &body).status()
    });
    assert_eq!(answers, [StatusCode::OK, StatusCode::CONFLICT]);
}

#[test]
fn an_old_lease_is_respected_for_its_duration_from_when_it_was_seen() {
    let wall = Timestamp::UNIX_EPOCH;
    let mut old = Election::new("old", "lease", 15);
    let Step::Create(lease) = old.observe(None, Duration::ZERO, wall) else {
        panic!("no lease")
    };
    let mut new = Election::new("new", "lease", 15);
    let at = |secs| Duration::from_secs(secs);
    // Its renewTime is decades ago, by whatever clock: that alone says nothing.
    assert_eq!(
        new.observe(Some((*lease).clone()), at(100), wall),
        Step::Wait
    );
    assert_eq!(
        new.observe(Some((*lease).clone()), at(114), wall),
        Step::Wait
    );
    let taken = new.observe(Some(*lease), at(115), wall);
    let Step::Update(taken) = taken else {
        panic!("{taken:?}")
    };
    assert_eq!(taken.spec.unwrap().lease_transitions, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_closed_fence_lets_reads_pass_and_refuses_writes_unsent() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&sent);
    let service = tower::service_fn(move |request: Request<()>| {
        log.lock().unwrap().push(request.method().clone());
        std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(())))
    });
    let fence = Fence::closed();
    let mut fenced = FenceLayer(fence.clone()).layer(service);
    let mut send = async |method: Method| {
        let request = Request::builder().method(method).body(()).unwrap();
        fenced.ready().await.unwrap().call(request).await.is_ok()
    };
    assert!(send(Method::GET).await);
    assert!(!send(Method::PATCH).await);
    fence.open_until(tokio::time::Instant::now() + Duration::from_secs(10));
    assert!(send(Method::PATCH).await);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(!send(Method::POST).await);
    assert_eq!(*sent.lock().unwrap(), [Method::GET, Method::PATCH]);
}
