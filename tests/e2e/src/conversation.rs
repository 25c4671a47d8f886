//! gRPC calls with one message each way: recorded, and replayed byte for byte.
//!
//! Invariant: messages and metadata are kept as they came; nothing here decodes a message.
//! Failure: a call that broke off is not part of a conversation; what broke is in the answer to its
//! caller.

use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

type Body = BoxBody<Bytes, Infallible>;

/// More than any message has.
const WINDOW: u32 = 64 << 20;

/// What a client sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Scheme, authority and path.
    pub uri: String,
    /// Metadata.
    pub headers: HeaderMap,
    /// The message behind its prefix.
    pub data: Bytes,
}

/// What a server sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Initial metadata.
    pub headers: HeaderMap,
    /// The message behind its prefix.
    pub data: Bytes,
    /// Final metadata, unless the initial ones ended the answer.
    pub trailers: Option<HeaderMap>,
}

/// One call.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// As the server got it.
    pub question: Question,
    /// As the server gave it.
    pub answer: Answer,
}

/// A connection to a server.
#[derive(Debug, Clone)]
pub struct Line(SendRequest<Body>);

/// A server on a Unix socket; dropped, it is gone with all its connections.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

/// Stands between a client and a server and keeps what they say.
#[derive(Debug)]
pub struct Tap {
    exchanges: Arc<Mutex<Vec<Exchange>>>,
    _server: Server,
}

impl Question {
    /// The method.
    pub fn method(&self) -> &str {
        self.uri.rsplit('/').next().unwrap_or_default()
    }

    async fn read(request: Request<Incoming>) -> Result<Self> {
        let (parts, body) = request.into_parts();
        let data = body.collect().await.context("read a request")?.to_bytes();
        Ok(Self {
            uri: parts.uri.to_string(),
            headers: parts.headers,
            data,
        })
    }
}

impl Answer {
    /// An end without a message.
    pub fn status(code: &'static str, text: &str) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static(code));
        if let Ok(text) = HeaderValue::from_str(text) {
            headers.insert("grpc-message", text);
        }
        Self {
            headers,
            data: Bytes::new(),
            trailers: None,
        }
    }

    /// Success with a message of no bytes: every list is empty, every text too.
    pub fn empty() -> Self {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Self {
            headers,
            data: Bytes::from_static(&[0; 5]),
            trailers: Some(trailers),
        }
    }

    async fn read(response: Response<Incoming>) -> Result<Self> {
        ensure!(response.status() == 200, "HTTP {}", response.status());
        let (parts, body) = response.into_parts();
        let is_over = body.is_end_stream();
        let body = body.collect().await.context("read an answer")?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        Ok(Self {
            headers: parts.headers,
            trailers: (!is_over).then_some(trailers),
            data: body.to_bytes(),
        })
    }

    fn into_response(self) -> Response<Body> {
        let body = match self.trailers {
            None => Empty::new().boxed(),
            Some(trailers) => frames([Frame::data(self.data), Frame::trailers(trailers)]),
        };
        let mut response = Response::new(body);
        *response.headers_mut() = self.headers;
        response
    }
}

/// A body without an announced length, as gRPC's have none.
fn frames<const N: usize>(frames: [Frame<Bytes>; N]) -> Body {
    StreamBody::new(tokio_stream::iter(frames.map(Ok))).boxed()
}

impl Line {
    /// Connects.
    pub async fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .await
            .with_context(|| format!("connect {}", socket.display()))?;
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Says something and waits for the whole answer.
    pub async fn call(&self, question: &Question) -> Result<Answer> {
        let mut request =
            Request::post(&question.uri).body(frames([Frame::data(question.data.clone())]))?;
        request.headers_mut().clone_from(&question.headers);
        let response = self.0.clone().send_request(request).await?;
        Answer::read(response).await
    }
}

impl Server {
    /// Listens; removes whatever has the name of the socket.
    pub fn start<F, Fut>(socket: &Path, answer: F) -> Result<Self>
    where
        F: Fn(Question) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Answer> + Send,
    {
        if socket.symlink_metadata().is_ok() {
            std::fs::remove_file(socket)?;
        }
        let listener = UnixListener::bind(socket)?;
        Ok(Self(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer.clone();
                let service = service_fn(move |request| {
                    let answer = answer.clone();
                    async move {
                        let answer = match Question::read(request).await {
                            Ok(question) => answer(question).await,
                            Err(error) => Answer::status("14", &format!("{error:#}")),
                        };
                        Ok::<_, Infallible>(answer.into_response())
                    }
                });
                connections.spawn(
                    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .auto_date_header(false)
                        .initial_stream_window_size(WINDOW)
                        .initial_connection_window_size(WINDOW)
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        })))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Tap {
    /// Listens on `socket` and passes everything on to the server on `behind`.
    pub async fn start(socket: &Path, behind: &Path) -> Result<Self> {
        let line = Line::connect(behind).await?;
        let exchanges = Arc::<Mutex<Vec<Exchange>>>::default();
        let keep = Arc::clone(&exchanges);
        let server = Server::start(socket, move |question: Question| {
            let line = line.clone();
            let keep = Arc::clone(&keep);
            async move {
                let answer = match line.call(&question).await {
                    Ok(answer) => answer,
                    Err(error) => return Answer::status("14", &format!("{error:#}")),
                };
                let exchange = Exchange {
                    question,
                    answer: answer.clone(),
                };
                keep.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(exchange);
                answer
            }
        })?;
        Ok(Self {
            exchanges,
            _server: server,
        })
    }

    /// What was said until now, in the order of the answers.
    pub fn exchanges(&self) -> Vec<Exchange> {
        let exchanges = self.exchanges.lock();
        exchanges.unwrap_or_else(PoisonError::into_inner).clone()
    }
}
