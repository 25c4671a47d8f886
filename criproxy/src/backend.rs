//! A runtime behind the proxy: its connections, and calls to it.
//!
//! Invariant: calls that last have connections of their own: a runtime bounds the calls of one
//! connection, and one more waits without a word. A call that ends before it was sent is sent once more on a new connection; one that
//! was sent never is.
//! Failure: [`Failure::Down`] when the runtime gave no answer, [`Failure::Refused`] with its answer
//! as it came when it ended the call with an error.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cri_proto::MAX_MESSAGE;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tonic::{Code, Status};

mod link;

pub(crate) use link::{CONNECTION_WINDOW, FRAME, HEADERS, Link, RESETS, STREAM_WINDOW};

use crate::methods::{Lasts, lasts};
use crate::metrics::{Metrics, Running};
use crate::state::BackendIndex;
use crate::wire::{Body, PREFIX, code_of, payload, refusal};

/// A runtime.
#[derive(Debug)]
pub(crate) struct Backend {
    /// Which.
    pub(crate) index: BackendIndex,
    /// Its configured name.
    pub(crate) name: Arc<str>,
    /// The connection for calls that are answered at once.
    pub(crate) link: Link,
    /// For probes, which last as long as the guest wants.
    probes: Link,
    /// For calls that last: starts, stops, pulls.
    lasting: Link,
    metrics: Arc<Metrics>,
}

/// A unary call's good answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// Initial metadata.
    pub(crate) headers: HeaderMap,
    /// The message without its prefix.
    pub(crate) message: Bytes,
    /// Final metadata.
    pub(crate) trailers: HeaderMap,
}

/// A unary call's bad end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No answer: why, as a short text.
    Down(String),
    /// No answer in time.
    Late(Duration),
    /// An answer with an error.
    Refused(Box<Refused>),
}

/// An answer with an error, as it came.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Its code.
    pub(crate) code: Code,
    headers: HeaderMap,
    trailers: Option<HeaderMap>,
}

impl Backend {
    pub(crate) fn new(
        index: BackendIndex,
        name: Arc<str>,
        link: Link,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            index,
            name,
            probes: link.beside(),
            lasting: link.beside(),
            link,
            metrics,
        }
    }

    /// Starts the clock of a call.
    pub(crate) fn meter(&self, method: &'static str) -> Running {
        self.metrics.start(&self.name, method)
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, String> {
        let link = match lasts(request.uri().path()) {
            Lasts::Briefly => &self.link,
            Lasts::AsGuestWants => &self.probes,
            Lasts::Long => &self.lasting,
        };
        let mut request = request;
        let mut again = true;
        loop {
            let (mut sender, generation) = link.get().await?;
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let unsent = error.take_message();
            let error = error.into_error();
            tracing::debug!(backend = %self.name, %error, "request not sent");
            link.discard(generation);
            match unsent {
                Some(unsent) if again => request = unsent,
                _ => return Err(format!("the connection failed: {error}")),
            }
            again = false;
        }
    }

    /// A call with one message each way.
    pub(crate) async fn unary(
        &self,
        method: &'static str,
        request: Request<Body>,
    ) -> Result<Answer, Failure> {
        let running = self.meter(method);
        let ended = self.exchange(request).await;
        running.end(code(&ended));
        ended
    }

    /// As [`Backend::unary`], but no answer within `limit` counts as none at all.
    pub(crate) async fn unary_within(
        &self,
        limit: Duration,
        method: &'static str,
        request: Request<Body>,
    ) -> Result<Answer, Failure> {
        let running = self.meter(method);
        let Ok(ended) = tokio::time::timeout(limit, self.exchange(request)).await else {
            running.end(Code::DeadlineExceeded);
            return Err(Failure::Late(limit));
        };
        running.end(code(&ended));
        ended
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Answer, Failure> {
        let response = self.send(request).await.map_err(Failure::Down)?;
        if response.status() != StatusCode::OK {
            let text = format!("it answered with HTTP status {}", response.status());
            return Err(Failure::Down(text));
        }
        let (parts, body) = response.into_parts();
        let headers = parts.headers;
        if body.is_end_stream() || headers.contains_key("grpc-status") {
            let code = code_of(&headers).unwrap_or(Code::Unknown);
            return Err(refused(code, headers, None));
        }
        let (data, trailers) = collect(body).await.map_err(Failure::Down)?;
        match code_of(&trailers).unwrap_or(Code::Unknown) {
            Code::Ok => {}
            code => return Err(refused(code, headers, Some(trailers))),
        }
        let message = payload(&data).map_err(|e| Failure::Down(e.to_string()))?;
        Ok(Answer {
            headers,
            message,
            trailers,
        })
    }

    /// The status of a call that needs this runtime while it does not answer.
    pub(crate) fn unavailable(&self, why: &str) -> Status {
        let name = &self.name;
        Status::unavailable(format!("runtime {name} is not available: {why}"))
    }
}

fn code(ended: &Result<Answer, Failure>) -> Code {
    match ended {
        Ok(_) => Code::Ok,
        Err(Failure::Down(_)) => Code::Unavailable,
        Err(Failure::Late(_)) => Code::DeadlineExceeded,
        Err(Failure::Refused(refused)) => refused.code,
    }
}

async fn collect(mut body: Incoming) -> Result<(Bytes, HeaderMap), String> {
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    let mut trailers = HeaderMap::new();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| format!("it broke off its answer: {e}"))?;
        match frame.into_data() {
            Ok(data) => {
                read += data.len();
                if read > MAX_MESSAGE + PREFIX {
                    return Err("its answer is too long".into());
                }
                if first.is_empty() && more.is_empty() {
                    first = data;
                    continue;
                }
                if more.is_empty() {
                    more.reserve(announced(&first));
                    more.extend_from_slice(&first);
                    first = Bytes::new();
                }
                more.extend_from_slice(&data);
            }
            Err(frame) => {
                if let Ok(found) = frame.into_trailers() {
                    trailers = found;
                }
            }
        }
    }
    let data = if more.is_empty() {
        first
    } else {
        more.freeze()
    };
    Ok((data, trailers))
}

/// The length that a body declares, within a bound.
fn announced(start: &[u8]) -> usize {
    let length = start.get(1..PREFIX).and_then(|l| l.first_chunk::<4>());
    let length = length.map_or(0, |l| u32::from_be_bytes(*l));
    usize::try_from(length).map_or(0, |l| l.min(MAX_MESSAGE)) + PREFIX
}

fn refused(code: Code, headers: HeaderMap, trailers: Option<HeaderMap>) -> Failure {
    Failure::Refused(Box::new(Refused::new(code, headers, trailers)))
}

impl Refused {
    pub(crate) fn new(code: Code, headers: HeaderMap, trailers: Option<HeaderMap>) -> Self {
        Self {
            code,
            headers,
            trailers,
        }
    }

    /// What ends an answer that has begun.
    pub(crate) fn into_trailers(self) -> HeaderMap {
        self.trailers.unwrap_or_else(|| {
            let mut headers = self.headers;
            headers.remove(http::header::CONTENT_TYPE);
            headers
        })
    }

    /// The runtime's own answer.
    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(match self.trailers {
            None => Body::Empty,
            Some(trailers) => Body::Ready {
                chunks: Default::default(),
                trailers: Some(trailers),
            },
        });
        *response.headers_mut() = self.headers;
        response
    }

    /// What the runtime reported.
    pub(crate) fn message(&self) -> String {
        let headers = self.trailers.as_ref().unwrap_or(&self.headers);
        let status = Status::from_header_map(headers);
        let text = status.map_or_else(String::new, |s| s.message().chars().take(300).collect());
        format!("{:?}: {text}", self.code)
    }
}

impl Failure {
    /// The answer for a call that cannot do without this runtime.
    pub(crate) fn into_response(self, backend: &Backend) -> Response<Body> {
        match self {
            Self::Refused(refused) => refused.into_response(),
            gone => refusal(&backend.unavailable(&gone.reason())),
        }
    }

    /// Whether the runtime is away, or itself reports that it cannot serve yet.
    pub(crate) fn is_away(&self) -> bool {
        match self {
            Self::Down(_) | Self::Late(_) => true,
            Self::Refused(refused) => refused.code == Code::Unavailable,
        }
    }

    /// Why, as a short text.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Down(why) => why.clone(),
            Self::Late(limit) => format!("no answer within {limit:?}"),
            Self::Refused(refused) => refused.message(),
        }
    }
}
