//! Calls of kubelet and answers of runtimes, as `vmlet-criproxy` reads them.
//!
//! Invariant: however the network cuts a body, its messages are those that a second reader of
//! gRPC's frames finds; the fields that decide a route are those that the whole message has. Bytes
//! that are passed on are unchanged.
//! Failure: a panic.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use cri_proto::v1;
use criproxy::wire::{
    ImageRequest, ListContainers, PREFIX, PullImage, RunPodSandbox, Unreadable, fields,
    keep_fields, payload,
};
use http_body_util::{Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A message, as bytes of a call without its prefix.
///
/// # Panics
///
/// When a field is read in another way than the whole message has it.
pub fn proxy_fields(input: &[u8]) {
    let mut whole = Vec::new();
    let mut is_well = true;
    for field in fields(input) {
        match field {
            Ok(field) => {
                assert!(
                    field
                        .content
                        .is_none_or(|content| field.raw.ends_with(content))
                );
                whole.extend_from_slice(field.raw);
            }
            Err(_) => is_well = false,
        }
    }
    assert!(input.starts_with(&whole));
    assert_eq!(is_well, whole.len() == input.len());
    assert_eq!(
        keep_fields(input, |_| true).ok().as_deref(),
        is_well.then_some(input)
    );
    if let Ok(ours) = RunPodSandbox::decode(input)
        && let Ok(full) = v1::RunPodSandboxRequest::decode(input)
        && !has_odd_sandbox(input, 1)
    {
        assert_eq!(ours.runtime_handler, full.runtime_handler);
        let config = full.config.unwrap_or_default();
        let sandbox = ours.config.unwrap_or_default();
        assert_eq!(sandbox.uid(), config.metadata.unwrap_or_default().uid);
        assert_eq!(sandbox.annotations, config.annotations);
        // A cleared handler leaves everything else as it is.
        if let Ok(cleared) = keep_fields(input, |field| field.number != 2) {
            let cleared = RunPodSandbox::decode(cleared).unwrap_or_default();
            assert_eq!(cleared.runtime_handler, "");
            assert_eq!(cleared.config.unwrap_or_default(), sandbox);
        }
    }
    if let Ok(ours) = PullImage::decode(input)
        && let Ok(full) = v1::PullImageRequest::decode(input)
        && !has_odd_sandbox(input, 3)
        && !has_odd_entry(input, 1, &[2])
    {
        let image = full.image.unwrap_or_default();
        let ours = ours.image.unwrap_or_default();
        assert_eq!(
            (&ours.name, &ours.runtime_handler),
            (&image.image, &image.runtime_handler)
        );
        assert_eq!(ours.annotations, image.annotations);
        let request = ImageRequest::decode(input).unwrap_or_default();
        assert_eq!(request.image.unwrap_or_default(), ours);
    }
    if let Ok(ours) = ListContainers::decode(input)
        && let Ok(full) = v1::ListContainersRequest::decode(input)
        && !has_odd_entry(input, 1, &[4])
    {
        let ours = ours.filter.unwrap_or_default();
        let full = full.filter.unwrap_or_default();
        assert_eq!(
            (ours.id, ours.pod_sandbox_id),
            (full.id, full.pod_sandbox_id)
        );
    }
}

/// Whether the messages in field `number` have an entry of a map, by the map's number, that is no
/// message. prost reads such an entry as if it were one; for the specification, it is unknown.
fn has_odd_entry(message: &[u8], number: u32, maps: &[u32]) -> bool {
    inside(message, number).iter().any(|inner| {
        fields(inner).any(|field| match field {
            // By its own wire type, the entry may be longer than the message.
            Err(_) => true,
            Ok(field) => maps.contains(&field.number) && field.content.is_none(),
        })
    })
}

/// The same for a sandbox: labels, annotations, and the settings of its kernel.
fn has_odd_sandbox(message: &[u8], number: u32) -> bool {
    let mut sandboxes = inside(message, number).into_iter();
    has_odd_entry(message, number, &[6, 7])
        || sandboxes.any(|sandbox| has_odd_entry(&sandbox, 8, &[3]))
}

/// The contents of a field.
fn inside(message: &[u8], number: u32) -> Vec<Vec<u8>> {
    let found = fields(message).flatten();
    let found = found.filter(|field| field.number == number);
    found
        .filter_map(|field| field.content.map(<[u8]>::to_vec))
        .collect()
}

/// The body of a call: its pieces arrive as they are.
///
/// # Panics
///
/// When a message differs from what the frames say.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
pub fn proxy_frames(input: &[u8]) {
    let pieces: Vec<Bytes> = crate::pieces(input).map(Bytes::copy_from_slice).collect();
    let body = pieces.concat();
    let (messages, end) = frames(&body);
    let whole = payload(&Bytes::from(body.clone()));
    match (&messages[..], &end) {
        _ if body.is_empty() => assert_eq!(whole, Ok(Bytes::new())),
        ([one], End::Whole) => assert_eq!(whole.as_ref(), Ok(one)),
        _ => assert!(whole.is_err(), "{whole:?}"),
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let only = runtime.block_on(call(pieces.clone(), |body| {
        criproxy::fuzzing::only(body, TIMEOUT)
    }));
    match (&messages[..], &end) {
        ([one], End::Whole) => assert_eq!(only.as_ref(), Ok(one)),
        ([], End::Whole) => assert_eq!(only, Err(Unreadable::Truncated)),
        _ => assert!(only.is_err(), "{only:?}"),
    }
    let (read, why) = runtime.block_on(call(pieces, criproxy::fuzzing::messages));
    assert_eq!(read, messages);
    let expected = match end {
        End::Whole => Ok(()),
        End::Cut => Err(Unreadable::Truncated),
        End::Flag => Err(Unreadable::Compressed),
        End::Long(length) => Err(Unreadable::TooLong(length)),
    };
    assert_eq!(why, expected);
}

/// What follows the last message.
#[derive(Debug)]
enum End {
    Whole,
    Cut,
    Flag,
    Long(u32),
}

/// The messages of a body, by the description of gRPC over HTTP/2.
fn frames(mut body: &[u8]) -> (Vec<Bytes>, End) {
    let mut messages = Vec::new();
    loop {
        let Some((head, rest)) = body.split_first_chunk::<PREFIX>() else {
            let end = if body.is_empty() {
                End::Whole
            } else {
                End::Cut
            };
            return (messages, end);
        };
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        if head[0] != 0 {
            return (messages, End::Flag);
        }
        if length > 16 << 20 {
            return (messages, End::Long(length));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(message) = rest.get(..length) else {
            return (messages, End::Cut);
        };
        messages.push(Bytes::copy_from_slice(message));
        body = &rest[length..];
    }
}

/// Sends a body in pieces over a connection of HTTP/2, and returns what `read` makes of it.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
async fn call<T, F>(pieces: Vec<Bytes>, read: fn(Incoming) -> F) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let (near, far) = tokio::io::duplex(64 << 10);
    let (report, mut result) = tokio::sync::mpsc::channel(1);
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        let report = report.clone();
        async move {
            let made = read(request.into_body()).await;
            report.send(made).await.expect("a receiver");
            Ok::<_, Infallible>(http::Response::new(Empty::<Bytes>::new()))
        }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let server = tokio::spawn(server.serve_connection(TokioIo::new(far), service));
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(near));
    let (mut sender, connection) = handshake.await.expect("a connection");
    let connection = tokio::spawn(connection);
    // The library ends a connection with many frames without content.
    let frames = pieces
        .into_iter()
        .filter(|piece| !piece.is_empty())
        .map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
    let body = StreamBody::new(futures_util::stream::iter(frames));
    let request = http::Request::post("http://proxy/call").body(body);
    let sending = sender.send_request(request.expect("a request"));
    // The answer may come before the whole body is sent.
    let (made, _) = tokio::join!(result.recv(), sending);
    drop(sender);
    server.abort();
    connection.abort();
    made.expect("a call that was read")
}
