//! An HTTP(S) server on loopback that behaves, or misbehaves as a script specifies.
//!
//! Invariant: each request takes one step off the script; with an empty script files are served as
//! RFC 9110 says, with ranges and conditions. Requests are recorded.
//! Failure: a broken connection is what some steps are for.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};

use futures_util::stream::{self, Stream, StreamExt as _};
use http::header::{self, HeaderName};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::task::AbortOnDropHandle;

/// What happens to one request instead of a proper answer.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// The proper answer.
    Serve,
    Status(u16),
    /// 401 with this challenge.
    Challenge(String),
    Redirect(String),
    /// The whole file, with its length in the header, but the connection breaks after so many
    /// bytes.
    CutAfter(usize),
    /// The whole file, but after so many bytes the rest waits for [`Server::go_on`].
    HoldAfter(usize),
    /// The whole file, one byte at a time for each [`Server::go_on`].
    Trickle,
    /// The whole file without its length.
    Unsized,
    /// The proper answer with one more header.
    With(HeaderName, &'static str),
}

/// What a request contained.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) query: Option<String>,
    headers: HeaderMap,
}

impl Seen {
    pub(super) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

#[derive(Debug, Clone)]
struct Offer {
    body: Bytes,
    etag: String,
}

#[derive(Debug)]
struct State {
    files: Mutex<HashMap<String, Offer>>,
    script: Mutex<VecDeque<Step>>,
    seen: Mutex<Vec<Seen>>,
    gate: Semaphore,
}

pub(super) struct Server {
    /// `host:port`.
    pub(super) authority: String,
    state: Arc<State>,
    _accepting: AbortOnDropHandle<()>,
}

impl Server {
    pub(super) async fn start() -> Self {
        Self::start_with("127.0.0.1", None).await
    }

    /// On another address than `localhost`, which is in its name then.
    pub(super) async fn start_at(address: &str) -> Self {
        let server = Self::start_with(address, None).await;
        let authority = server.authority.replace("localhost", address);
        Self {
            authority,
            ..server
        }
    }

    pub(super) async fn start_tls(config: ServerConfig) -> Self {
        let tls = TlsAcceptor::from(Arc::new(config));
        Self::start_with("127.0.0.1", Some(tls)).await
    }

    async fn start_with(address: &str, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let authority = format!("localhost:{}", listener.local_addr().unwrap().port());
        let state = Arc::new(State {
            files: Mutex::default(),
            script: Mutex::default(),
            seen: Mutex::default(),
            gate: Semaphore::new(0),
        });
        let accepting = {
            let state = Arc::clone(&state);
            tokio::spawn(async move {
                loop {
                    let (socket, _) = listener.accept().await.unwrap();
                    let state = Arc::clone(&state);
                    let tls = tls.clone();
                    tokio::spawn(async move {
                        match tls {
                            None => converse(socket, state).await,
                            Some(tls) => {
                                // Some tests want a client that does not trust us.
                                if let Ok(stream) = tls.accept(socket).await {
                                    converse(stream, state).await;
                                }
                            }
                        }
                    });
                }
            })
        };
        Self {
            authority,
            state,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }

    /// Offers a file under `/path` with an ETag made of `version`.
    pub(super) fn offer(&self, path: &str, body: &[u8], version: &str) {
        let offer = Offer {
            body: Bytes::copy_from_slice(body),
            etag: format!("\"{version}\""),
        };
        self.state
            .files
            .lock()
            .unwrap()
            .insert(format!("/{path}"), offer);
    }

    /// Offers a file no more.
    pub(super) fn forget(&self, path: &str) {
        let mut files = self.state.files.lock().unwrap();
        files.remove(&format!("/{path}"));
    }

    pub(super) fn script(&self, steps: impl IntoIterator<Item = Step>) {
        self.state.script.lock().unwrap().extend(steps);
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// Lets one held body continue.
    pub(super) fn go_on(&self) {
        self.state.gate.add_permits(1);
    }

    /// The name of a file here, without tag.
    pub(super) fn name(&self, path: &str) -> String {
        format!("{}/{path}", self.authority)
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, state: Arc<State>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(state.answer(&request)) }
    });
    // Cut connections end in an error here, as they should.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

type Body = UnsyncBoxBody<Bytes, io::Error>;
type Piece = io::Result<Frame<Bytes>>;

impl State {
    fn answer(self: Arc<Self>, request: &Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        self.seen.lock().unwrap().push(Seen {
            path: path.clone(),
            query: request.uri().query().map(str::to_owned),
            headers: request.headers().clone(),
        });
        let step = self.script.lock().unwrap().pop_front();
        let file = self.files.lock().unwrap().get(&path).cloned();
        match (step.unwrap_or(Step::Serve), file) {
            (Step::Status(code), _) => plain(
                StatusCode::from_u16(code).unwrap(),
                Bytes::from_static(b"no"),
            ),
            (Step::Challenge(challenge), _) => {
                let mut response = plain(StatusCode::UNAUTHORIZED, Bytes::new());
                let value = challenge.parse().unwrap();
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, value);
                response
            }
            (Step::Redirect(to), _) => {
                let mut response = plain(StatusCode::FOUND, Bytes::new());
                response
                    .headers_mut()
                    .insert(header::LOCATION, to.parse().unwrap());
                response
            }
            (_, None) => plain(StatusCode::NOT_FOUND, Bytes::new()),
            (Step::Serve, Some(file)) => file.serve(request.headers()),
            (Step::With(name, value), Some(file)) => {
                let mut response = file.serve(request.headers());
                response.headers_mut().insert(name, value.parse().unwrap());
                response
            }
            (Step::CutAfter(n), Some(file)) => {
                // The server sends what it has when there is nothing more for the moment.
                let broken = stream::once(async {
                    tokio::task::yield_now().await;
                    Err(io::Error::other("cut"))
                });
                let pieces = stream::iter([data(file.body.slice(..n))]).chain(broken);
                file.whole(Some(file.body.len()), pieces)
            }
            (Step::HoldAfter(n), Some(file)) => {
                let rest = file.body.slice(n..);
                let later = stream::once(async move {
                    self.gate.acquire().await.unwrap().forget();
                    data(rest)
                });
                let pieces = stream::iter([data(file.body.slice(..n))]).chain(later);
                file.whole(Some(file.body.len()), pieces)
            }
            (Step::Trickle, Some(file)) => {
                let body = file.body.clone();
                let bytes = stream::unfold((self, body), async |(state, mut rest)| {
                    if rest.is_empty() {
                        return None;
                    }
                    state.gate.acquire().await.unwrap().forget();
                    Some((data(rest.split_to(1)), (state, rest)))
                });
                file.whole(Some(file.body.len()), bytes)
            }
            (Step::Unsized, Some(file)) => {
                let pieces = stream::iter([data(file.body.clone())]);
                file.whole(None, pieces)
            }
        }
    }
}

impl Offer {
    fn serve(&self, headers: &HeaderMap) -> Response<Body> {
        let is_ours = |name| {
            headers
                .get(name)
                .is_some_and(|etag| etag == self.etag.as_str())
        };
        if is_ours(header::IF_NONE_MATCH) {
            return plain(StatusCode::NOT_MODIFIED, Bytes::new());
        }
        let range = headers
            .get(header::RANGE)
            .filter(|_| !headers.contains_key(header::IF_RANGE) || is_ours(header::IF_RANGE));
        let Some(range) = range.and_then(|r| r.to_str().ok()) else {
            let pieces = stream::iter([data(self.body.clone())]);
            return self.whole(Some(self.body.len()), pieces);
        };
        let range = range.strip_prefix("bytes=").unwrap();
        let (start, last) = range.split_once('-').unwrap();
        let start: usize = start.parse().unwrap();
        let total = self.body.len();
        if start >= total {
            return plain(StatusCode::RANGE_NOT_SATISFIABLE, Bytes::new());
        }
        let last: usize = last.parse().unwrap_or(usize::MAX).min(total - 1);
        let mut response = plain(StatusCode::PARTIAL_CONTENT, self.body.slice(start..=last));
        let span = format!("bytes {start}-{last}/{total}");
        response
            .headers_mut()
            .insert(header::CONTENT_RANGE, span.parse().unwrap());
        response
    }

    fn whole<S>(&self, length: Option<usize>, pieces: S) -> Response<Body>
    where
        S: Stream<Item = Piece> + Send + 'static,
    {
        let mut response = Response::builder().header(header::ETAG, self.etag.as_str());
        if let Some(length) = length {
            response = response.header(header::CONTENT_LENGTH, length);
        }
        response
            .body(StreamBody::new(pieces).boxed_unsync())
            .unwrap()
    }
}

fn data(bytes: Bytes) -> Piece {
    Ok(Frame::data(bytes))
}

fn plain(status: StatusCode, body: Bytes) -> Response<Body> {
    let body = http_body_util::Full::new(body).map_err(|never| match never {});
    Response::builder()
        .status(status)
        .body(body.boxed_unsync())
        .unwrap()
}
