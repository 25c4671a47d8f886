//! HTTP of the streaming server: token, upgrade, session.
//!
//! Invariant: a connection is worth one request; one without a valid upgrade ends with its answer.
//! At most [`MOST`] connections are open. All of them end when [`serve`] is dropped.
//! Failure: an HTTP status; later, what the session's protocol has for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use spdy::{Limits, Session};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::console::Shared;
use super::protocol::{self, Refusal};
use super::{Gate, Target, attach, exec, port_forward};
use crate::app::Containers;

/// Most connections at a time.
const MOST: usize = 1024;
/// Time for the headers of a request.
const HEADERS: Duration = Duration::from_secs(10);
/// Wait after a failure to accept, such as too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

type Answer = Response<Full<Bytes>>;

/// What sessions need.
#[derive(Debug, Clone)]
struct Services {
    gate: Arc<Gate>,
    containers: Arc<Containers>,
    consoles: Shared,
}

/// Serves connections.
pub(super) async fn serve(listener: TcpListener, gate: Arc<Gate>, containers: Arc<Containers>) {
    let services = Services {
        gate,
        containers,
        consoles: Shared::default(),
    };
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= MOST {
            connections.join_next().await;
            continue;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, services.clone()));
            }
            Err(error) => {
                tracing::warn!(
                    error = crate::one_line(&error),
                    "streaming connection not accepted"
                );
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

/// What the request of a connection may start.
type Start = (hyper::upgrade::OnUpgrade, Target, &'static str);

/// Serves one connection: one request, and the session that it starts.
async fn connection(stream: TcpStream, services: Services) {
    // Small frames are not held back.
    stream.set_nodelay(true).ok();
    let started = Arc::new(std::sync::Mutex::new(None::<Start>));
    let service = service_fn(|request: Request<Incoming>| {
        let answer = upgrade(request, &services.gate);
        let started = Arc::clone(&started);
        async move {
            let (answer, start) = answer;
            if let (Some(start), Ok(mut place)) = (start, started.lock()) {
                *place = Some(start);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    if let Err(error) = served.await {
        tracing::debug!(error = crate::one_line(&error), "streaming request failed");
        return;
    }
    let start = started.lock().ok().and_then(|mut place| place.take());
    if let Some((upgrade, target, version)) = start {
        let kind = target.path();
        match session(upgrade, target, version, services).await {
            Ok(()) => tracing::debug!(kind, "streaming session ended"),
            Err(error) => tracing::debug!(kind, error, "streaming session failed"),
        }
    }
}

/// The answer to a request, and what it starts.
fn upgrade(request: Request<Incoming>, gate: &Gate) -> (Answer, Option<Start>) {
    let target = protocol::path(request.uri().path())
        .and_then(|(kind, token)| Some((kind, gate.tokens.redeem(token)?)))
        .filter(|(kind, target)| *kind == target.path());
    let Some((_, target)) = target else {
        let refusal = Refusal {
            status: StatusCode::NOT_FOUND,
            message: "no session has this URL: it was used already, or it is older than a minute",
        };
        return (refused(refusal, &[]), None);
    };
    let known = match target {
        Target::Exec(_) | Target::Attach(_) => protocol::REMOTE_COMMAND,
        Target::PortForward(_) => protocol::PORT_FORWARD,
    };
    match protocol::negotiate(request.method(), request.headers(), known) {
        Err(refusal) => (refused(refusal, known), None),
        Ok(version) => {
            let start = (hyper::upgrade::on(request), target, version);
            (switching(version), Some(start))
        }
    }
}

fn refused(refusal: Refusal, known: &[&'static str]) -> Answer {
    let mut answer = Response::new(Full::from(refusal.message));
    *answer.status_mut() = refusal.status;
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(header::CONNECTION, close);
    if refusal.status == StatusCode::FORBIDDEN {
        for version in known {
            let value = HeaderValue::from_static(version);
            answer.headers_mut().append(protocol::ACCEPTED, value);
        }
    }
    answer
}

fn switching(version: &'static str) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(protocol::SPDY));
    headers.insert(protocol::VERSION, HeaderValue::from_static(version));
    answer
}

async fn session(
    upgrade: hyper::upgrade::OnUpgrade,
    target: Target,
    version: &'static str,
    services: Services,
) -> Result<(), String> {
    let upgraded = upgrade.await.map_err(|e| crate::one_line(&e))?;
    let session = Session::server(TokioIo::new(upgraded), Limits::default());
    let session = session.map_err(|e| crate::one_line(&e))?;
    match target {
        Target::Exec(target) => exec::run(session, version, target, services.containers).await,
        Target::Attach(target) => attach::run(session, version, target, services.consoles).await,
        Target::PortForward(addresses) => port_forward::run(session, addresses).await,
    }
}
