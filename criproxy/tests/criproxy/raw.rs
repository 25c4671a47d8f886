//! HTTP/2 without a gRPC library on either side, to see every byte.
//!
//! Invariant: a server answers what its script specifies; whatever it has no script for is an empty
//! success.
//! Failure: a panic with the frame that was not expected.

use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

pub(crate) type Body = BoxBody<Bytes, Infallible>;
type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
/// Gives `None` for calls without a script.
pub(crate) type Script = dyn Fn(Request<Incoming>) -> Option<Answering> + Send + Sync;

/// Serves on `socket` until the runtime of the test ends, or the task is aborted: then its
/// connections break.
pub(crate) fn serve(socket: &Path, script: Arc<Script>) -> JoinHandle<()> {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let script = Arc::clone(&script);
            let service = service_fn(move |request| {
                let answer = script(request);
                async move {
                    Ok::<_, Infallible>(match answer {
                        Some(answer) => answer.await,
                        None => answer_with(&[frame(b"")], trailers("0")),
                    })
                }
            });
            connections.spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(32 << 20)
                    .initial_connection_window_size(32 << 20)
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    })
}

pub(crate) async fn connect(socket: &Path) -> SendRequest<Body> {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(32 << 20)
        .initial_connection_window_size(32 << 20)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

/// A message behind its prefix.
pub(crate) fn frame(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat().into()
}

pub(crate) fn trailers(status: &str) -> HeaderMap {
    HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-status"),
        HeaderValue::from_str(status).unwrap(),
    )])
}

/// A body of these data and trailers.
pub(crate) fn body(data: &[Bytes], trailers: Option<HeaderMap>) -> Body {
    let data = data.iter().cloned().map(Frame::data);
    let frames: Vec<_> = data.chain(trailers.map(Frame::trailers)).map(Ok).collect();
    StreamBody::new(tokio_stream::iter(frames)).boxed()
}

/// A body whose data are sent later; it ends when the sender is dropped.
pub(crate) fn open_body() -> (mpsc::Sender<Frame<Bytes>>, Body) {
    let (sender, receiver) = mpsc::channel(4);
    let frames = ReceiverStream::new(receiver).map(Ok);
    (sender, StreamBody::new(frames).boxed())
}

pub(crate) fn answer_with(data: &[Bytes], trailers: HeaderMap) -> Response<Body> {
    Response::builder()
        .header("content-type", "application/grpc")
        .body(body(data, Some(trailers)))
        .unwrap()
}

pub(crate) fn call(path: &str, body: Body) -> Request<Body> {
    Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap()
}

/// Everything of an answer: headers, data, trailers.
pub(crate) async fn whole(response: Response<Incoming>) -> (HeaderMap, Bytes, HeaderMap) {
    let (parts, body) = response.into_parts();
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    (parts.headers, collected.to_bytes(), trailers)
}

/// Code of an answer, wherever it is.
pub(crate) async fn code(response: Response<Incoming>) -> String {
    let (headers, _, trailers) = whole(response).await;
    let code = trailers.get("grpc-status").or(headers.get("grpc-status"));
    code.unwrap().to_str().unwrap().to_owned()
}
