//! The events of pulls, against an API server that the test plays.
//!
//! Invariant: the test answers each request; a request that it does not await fails it.
//! Failure: the request that is wrong.

use http::{Request, Response, StatusCode};
use k8s_openapi::api::events::v1::Event as ApiEvent;
use kube::client::Body;
use nodeapi::v1::InfoResponse;
use serde_json::json;
use tokio::sync::mpsc::{Sender, channel};
use tokio_util::task::AbortOnDropHandle;
use tower_test::mock::{self, Handle};

use super::*;

/// Reporter, and both of its sides.
struct Bench {
    daemon: Sender<Event<PullEvent>>,
    api: Handle<Request<Body>, Response<Body>>,
    metrics: Arc<Metrics>,
    _running: AbortOnDropHandle<()>,
}

impl Bench {
    fn new() -> Self {
        let (service, api) = mock::pair();
        let client = kube::Client::new(service, "default");
        let metrics = Arc::new(Metrics::new());
        let reporter = Reporter::new(client, "n1".to_owned(), Arc::clone(&metrics));
        let (daemon, events) = channel(16);
        let running = reporter.run(events, CancellationToken::new());
        Self {
            daemon,
            api,
            metrics,
            _running: AbortOnDropHandle::new(tokio::spawn(running)),
        }
    }

    async fn send(&self, event: Event<PullEvent>) {
        self.daemon.send(event).await.unwrap();
    }

    async fn connect(&self) {
        let info = Box::new(InfoResponse::default());
        self.send(Event::Connected(info)).await;
    }

    async fn pull(&self, id: &str, pod: &str, received: u64) {
        self.send(Event::Item(PullEvent {
            pull: Some(pull(id, pod, received)),
            ..PullEvent::default()
        }))
        .await;
    }

    /// The next event that is created, and the answer to it.
    async fn created(&mut self, answer: StatusCode) -> ApiEvent {
        let (request, reply) = self.api.next_request().await.unwrap();
        assert_eq!(
            (request.method().as_str(), request.uri().path()),
            ("POST", "/apis/events.k8s.io/v1/namespaces/ns/events")
        );
        let body = request.into_body().collect_bytes().await.unwrap();
        let event: ApiEvent = serde_json::from_slice(&body).unwrap();
        let answered = match answer {
            StatusCode::CREATED => body.to_vec(),
            code => serde_json::to_vec(&json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure",
                "message": "no", "reason": "no", "code": code.as_u16(),
            }))
            .unwrap(),
        };
        let response = Response::builder().status(answer);
        reply.send_response(response.body(Body::from(answered)).unwrap());
        event
    }

    /// The reporter has done all that it can do by now.
    async fn is_silent(&mut self) {
        // The time is paused: it goes on only when all others wait.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let next = futures_util::FutureExt::now_or_never(self.api.next_request());
        assert!(next.is_none(), "an event too many");
    }
}

fn pull(id: &str, pod: &str, received: u64) -> Pull {
    Pull {
        id: id.to_owned(),
        pod_namespace: "ns".to_owned(),
        pod_name: pod.to_owned(),
        pod_uid: format!("uid of {pod}"),
        image: "h.org/a:1".to_owned(),
        received_bytes: received << 20,
        total_bytes: 512 << 20,
    }
}

fn note(event: &ApiEvent) -> (&str, &str) {
    let pod = event.regarding.as_ref().and_then(|pod| pod.name.as_deref());
    (pod.unwrap(), event.note.as_deref().unwrap())
}

#[tokio::test(start_paused = true)]
async fn each_pod_of_a_shared_pull_gets_an_event_for_each_point() {
    let mut bench = Bench::new();
    bench.connect().await;
    bench.pull("1", "vm", 40).await;
    bench.is_silent().await;
    bench.pull("1", "vm", 256).await;
    let event = bench.created(StatusCode::CREATED).await;
    assert_eq!(note(&event), ("vm", "Image h.org/a:1: 50 % of 512 MiB"));
    let pod = event.regarding.unwrap();
    assert_eq!(
        (pod.kind.as_deref(), pod.uid.as_deref()),
        (Some("Pod"), Some("uid of vm"))
    );
    let words = [event.reason, event.type_, event.action].map(Option::unwrap);
    assert_eq!(words, ["Pulling", "Normal", "PullImage"]);
    bench.pull("2", "other", 300).await;
    let event = bench.created(StatusCode::CREATED).await;
    assert_eq!(note(&event), ("other", "Image h.org/a:1: 58 % of 512 MiB"));
    for id in ["1", "2"] {
        bench.pull(id, "vm", 310).await;
    }
    bench.is_silent().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_pull_makes_no_second_event_and_a_failure_is_counted() {
    let mut bench = Bench::new();
    bench.connect().await;
    bench.pull("1", "vm", 256).await;
    let first = bench.created(StatusCode::CREATED).await;
    bench
        .send(Event::Item(PullEvent {
            pull: Some(Pull {
                id: "1".to_owned(),
                ..Pull::default()
            }),
            gone: true,
            ..PullEvent::default()
        }))
        .await;
    bench.pull("2", "vm", 300).await;
    let again = bench.created(StatusCode::CONFLICT).await;
    assert_eq!(first.metadata.name, again.metadata.name);
    bench.is_silent().await;
    bench.pull("2", "vm", 400).await;
    let third = bench.created(StatusCode::FORBIDDEN).await;
    assert_ne!(third.metadata.name, again.metadata.name);
    bench.is_silent().await;
    let text = bench.metrics.text();
    for line in [
        r#"vmlet_agent_api_writes_total{what="event",outcome="written"} 2"#,
        r#"vmlet_agent_api_writes_total{what="event",outcome="failed"} 1"#,
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_pulls_wait_for_a_slow_api_server_and_get_their_newest_point() {
    let mut bench = Bench::new();
    bench.connect().await;
    for id in 0..=AT_ONCE {
        bench.pull(&id.to_string(), &format!("vm{id}"), 60).await;
    }
    let mut waiting = Vec::new();
    for _ in 0..AT_ONCE {
        waiting.push(bench.api.next_request().await.unwrap());
    }
    bench.is_silent().await;
    for id in 0..=AT_ONCE {
        bench.pull(&id.to_string(), &format!("vm{id}"), 384).await;
    }
    bench.is_silent().await;
    for (_, reply) in waiting {
        reply.send_error(std::io::Error::other("away"));
    }
    let mut notes = Vec::new();
    for _ in 0..=AT_ONCE {
        let event = bench.created(StatusCode::CREATED).await;
        notes.push(event.note.unwrap());
    }
    assert_eq!(notes, vec!["Image h.org/a:1: 75 % of 512 MiB"; AT_ONCE + 1]);
    bench.is_silent().await;
}

#[tokio::test(start_paused = true)]
async fn pulls_of_a_daemon_that_restarted_are_forgotten() {
    let client = kube::Client::new(mock::pair::<Request<Body>, Response<Body>>().0, "default");
    let mut reporter = Reporter::new(client, "n1".to_owned(), Arc::new(Metrics::new()));
    let connected = || Event::Connected(Box::default());
    let synced = || {
        Event::Item(PullEvent {
            synced: true,
            ..PullEvent::default()
        })
    };
    reporter.daemon(connected());
    for id in 0..MOST + 10 {
        reporter.pull(pull(&id.to_string(), "vm", 0));
    }
    assert_eq!(reporter.entries.len(), MOST);
    reporter.daemon(Event::Lost);
    reporter.daemon(connected());
    reporter.pull(pull("7", "vm", 1));
    reporter.daemon(synced());
    reporter.daemon(Event::Synced);
    let left: Vec<_> = reporter.entries.keys().collect();
    assert_eq!(left, ["7"]);
}
