//! HTTP of the streaming server: TLS, token, upgrade, session.
//!
//! Invariant: a connection is worth one request; one without a valid upgrade ends with its answer.
//! Connections that have not started a session have [`REQUESTS`] places of their own: a new one ends
//! the oldest of the client that has most. Sessions have [theirs](super::places). All of them end when
//! [`serve`] is dropped.
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
use service::admin_http::Places;
use spdy::{Limits, Session};
use streamapi::{Agreed, Refusal, Service, Transport};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_util::sync::CancellationToken;

use super::attach::Console;
use super::console::Shared;
use super::places::SessionPlace;
use super::tls::Tls;
use super::{Admission, Gate, Target, attach, exec, port_forward, process, streams, websocket};
use crate::platform::Platform;
use crate::vm::Containers;

/// Connections at a time that have not started a session. Every process of the node can make them; kubelet
/// sends its request at once.
pub(super) const REQUESTS: usize = 256;
/// Time for the headers of a request, and for the TLS handshake before it.
const HEADERS: Duration = Duration::from_secs(10);
/// Wait after a failure to accept, such as too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// How long a command may leave its input unread.
const LATE_READER: Duration = Duration::from_secs(10 * 60);

type Answer = Response<Full<Bytes>>;

/// What sessions need.
#[derive(Debug)]
struct Services<P: Platform> {
    gate: Arc<Gate>,
    containers: Arc<Containers<P>>,
    consoles: Shared,
    /// Sessions are to end.
    closing: CancellationToken,
}

impl<P: Platform> Clone for Services<P> {
    fn clone(&self) -> Self {
        Self {
            gate: Arc::clone(&self.gate),
            containers: Arc::clone(&self.containers),
            consoles: Arc::clone(&self.consoles),
            closing: self.closing.clone(),
        }
    }
}

/// Serves connections.
pub(super) async fn serve<P: Platform>(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    gate: Arc<Gate>,
    containers: Arc<Containers<P>>,
    closing: CancellationToken,
) {
    let services = Services {
        gate,
        containers,
        consoles: Shared::default(),
        closing: closing.clone(),
    };
    let mut open = Open {
        requests: JoinSet::new(),
        sessions: JoinSet::new(),
    };
    let accept = accept(&listener, tls, &services, &mut open);
    closing.run_until_cancelled(accept).await;
    while let Some(ended) = open.requests.join_next().await {
        open.begin(ended, &services);
    }
    while open.sessions.join_next().await.is_some() {}
}

/// What is served.
struct Open {
    /// Connections whose request may start a session.
    requests: JoinSet<Option<Start>>,
    sessions: JoinSet<()>,
}

impl Open {
    /// Begins the session that a request started.
    fn begin<P: Platform>(
        &mut self,
        ended: Result<Option<Start>, JoinError>,
        services: &Services<P>,
    ) {
        // One that has lost its place was aborted.
        if let Ok(Some(start)) = ended {
            self.sessions.spawn(observed(start, services.clone()));
        }
    }
}

/// Accepts connections without end.
async fn accept<P: Platform>(
    listener: &TcpListener,
    tls: Option<Arc<Tls>>,
    services: &Services<P>,
    open: &mut Open,
) {
    let mut places = Places::new(REQUESTS);
    loop {
        let accepted = tokio::select! {
            Some(ended) = open.requests.join_next() => {
                open.begin(ended, services);
                continue;
            }
            Some(_) = open.sessions.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, client)) => {
                places.make_room();
                let request = accepted_request(stream, tls.clone(), services.clone());
                places.take(Some(client.ip()), open.requests.spawn(request));
                // In a flood each connection gets its turn before it loses its place.
                tokio::task::yield_now().await;
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

/// Serves the request of one connection.
async fn accepted_request<P: Platform>(
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    services: Services<P>,
) -> Option<Start> {
    // Small frames are not held back.
    stream.set_nodelay(true).ok();
    let Some(tls) = tls else {
        return connection(stream, &services).await;
    };
    let tls = tls.acceptor().await;
    match tokio::time::timeout(HEADERS, tls.accept(stream)).await {
        Ok(Ok(stream)) => return connection(stream, &services).await,
        Ok(Err(error)) => {
            tracing::debug!(error = crate::one_line(&error), "streaming request failed");
        }
        Err(_) => tracing::debug!(
            error = "no TLS handshake in time",
            "streaming request failed"
        ),
    }
    None
}

/// What the request of a connection starts.
#[derive(Debug)]
struct Start {
    upgrade: hyper::upgrade::OnUpgrade,
    target: Target,
    agreed: Agreed,
    place: SessionPlace,
}

/// Serves one request; returns the session that it starts.
async fn connection<P, T>(stream: T, services: &Services<P>) -> Option<Start>
where
    P: Platform,
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let started = Arc::new(std::sync::Mutex::new(None::<Start>));
    let service = service_fn(|request: Request<Incoming>| {
        let answer = upgrade(request, &services.gate);
        let started = Arc::clone(&started);
        async move {
            let (answer, start) = answer;
            if let Some(start) = start
                && let Ok(mut place) = started.lock()
            {
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
    if let Err(error) = services.closing.run_until_cancelled(served).await? {
        tracing::debug!(error = crate::one_line(&error), "streaming request failed");
        return None;
    }
    started.lock().ok()?.take()
}

/// Serves a session, and counts it.
async fn observed<P: Platform>(start: Start, services: Services<P>) {
    let kind = start.target.path();
    let running = services.containers.metrics().begin(kind);
    let ended = session(start, services).await;
    running.end(ended.is_ok());
    match ended {
        Ok(()) => tracing::debug!(kind, "streaming session ended"),
        Err(error) => tracing::debug!(kind, error, "streaming session failed"),
    }
}

/// The answer to a request, and what it starts.
fn upgrade(request: Request<Incoming>, gate: &Gate) -> (Answer, Option<Start>) {
    let admission = streamapi::path(request.uri().path())
        .and_then(|(kind, token)| Some((kind, gate.tokens.redeem(token)?)))
        .filter(|(kind, admission)| *kind == admission.target.path());
    let Some((_, Admission { pod, mut target })) = admission else {
        let refusal = Refusal {
            status: StatusCode::NOT_FOUND,
            message: "no session has this URL: it was used already, or it is older than a minute",
        };
        return (refused(refusal, None), None);
    };
    let service = match target {
        Target::Exec(_) | Target::Attach(_) => Service::RemoteCommand,
        Target::PortForward(_) => Service::PortForward,
    };
    let agreed = streamapi::negotiate(request.method(), request.headers(), service);
    let agreed = agreed.and_then(|agreed| with_ports(&request, &mut target, agreed));
    let placed = agreed.and_then(|agreed| match gate.places.take(&pod) {
        Ok(place) => Ok((agreed, place)),
        Err(full) => Err(full.refusal()),
    });
    match placed {
        Err(refusal) => (refused(refusal, Some(service)), None),
        Ok((agreed, place)) => {
            let answer = switching(&request, agreed);
            let upgrade = hyper::upgrade::on(request);
            let start = Start {
                upgrade,
                target,
                agreed,
                place,
            };
            (answer, Some(start))
        }
    }
}

/// Channels of connections have the ports of the query, or those of the CRI request.
fn with_ports(
    request: &Request<Incoming>,
    target: &mut Target,
    agreed: Agreed,
) -> Result<Agreed, Refusal> {
    if let Target::PortForward(target) = target
        && matches!(agreed.transport, Transport::Channels(_))
    {
        let ports = streamapi::ports(request.uri().query().unwrap_or_default())?;
        if !ports.is_empty() {
            target.ports = ports;
        }
        let message = match target.ports.len() {
            0 => "the query needs a port: ?port=80",
            1..=streamapi::MOST_PORTS => return Ok(agreed),
            _ => "the request has more than 32 ports",
        };
        return Err(Refusal {
            status: StatusCode::BAD_REQUEST,
            message,
        });
    }
    Ok(agreed)
}

fn refused(refusal: Refusal, service: Option<Service>) -> Answer {
    let mut answer = Response::new(Full::from(refusal.message));
    *answer.status_mut() = refusal.status;
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(header::CONNECTION, close);
    if refusal.status == StatusCode::FORBIDDEN {
        for version in service.into_iter().flat_map(Service::versions) {
            let value = HeaderValue::from_static(version);
            answer.headers_mut().append(streamapi::ACCEPTED, value);
        }
    }
    answer
}

fn switching(request: &Request<Incoming>, agreed: Agreed) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let (upgrade, version) = match agreed.transport {
        Transport::Spdy => (streamapi::SPDY, streamapi::VERSION),
        Transport::Tunnel | Transport::Channels(_) => (streamapi::WEBSOCKET, streamapi::PROTOCOL),
    };
    headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
    if !agreed.version.is_empty() {
        headers.insert(version, HeaderValue::from_static(agreed.version));
    }
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY);
    let accept = key.map(|key| derive_accept_key(key.as_bytes()));
    if let Some(Ok(accept)) = accept.map(HeaderValue::try_from)
        && agreed.transport != Transport::Spdy
    {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    answer
}

/// The bounds of a session. Connections wait for each other: one that is stuck has to go soon. A
/// command may well begin to read its input late.
fn limits(target: &Target) -> Limits {
    let usual = Limits::default();
    let stall = match target {
        Target::Exec(_) | Target::Attach(_) => LATE_READER,
        Target::PortForward(_) => usual.stall,
    };
    Limits { stall, ..usual }
}

async fn session<P: Platform>(start: Start, services: Services<P>) -> Result<(), String> {
    let Start {
        upgrade,
        target,
        agreed,
        place: _place,
    } = start;
    let transport = TokioIo::new(upgrade.await.map_err(|e| crate::one_line(&e))?);
    let limits = limits(&target);
    let session = match agreed.transport {
        Transport::Spdy => Session::server(transport, limits),
        Transport::Tunnel => Session::server(websocket::tunnel(transport).await, limits),
        Transport::Channels(channels) => {
            let openings = streams::openings(&target);
            Ok(websocket::session(transport, channels, openings, limits).await)
        }
    };
    let session = session.map_err(|e| crate::one_line(&e))?;
    let Services {
        containers,
        consoles,
        closing,
        ..
    } = services;
    match target {
        Target::Exec(target) => exec::run(session, agreed, target, containers, closing).await,
        Target::Attach(mut target) => match target.socket.take() {
            Some(socket) => {
                let console = Console {
                    container: target.container.clone(),
                    socket,
                    consoles,
                    containers,
                };
                attach::run(session, agreed, target, console, closing).await
            }
            None => process::run(session, agreed, target, containers, closing).await,
        },
        Target::PortForward(target) => {
            let is_over_channels = matches!(agreed.transport, Transport::Channels(_));
            let only = is_over_channels.then_some(target.ports.len());
            let carried = port_forward::run(session, target.addresses, only);
            let carried = closing.run_until_cancelled(carried).await;
            carried.unwrap_or_else(|| Err(super::CLOSING.to_owned()))
        }
    }
}
