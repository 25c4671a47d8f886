//! WebSocket as the transport of a session: each channel is a stream, or SPDY is in the messages.
//!
//! ```text
//! message "0ls\n" ─► Channels::read ─► frame of stream 1 ─► spdy::Session ─► exec, attach, …
//! ```
//!
//! Invariant: a session over channels is one over SPDY whose client has opened the streams of the
//! request at once: the same bounds, buffers and time-outs hold. A message has at most [`MESSAGE`]
//! bytes.
//! Failure: a malformed message, or a reader that takes nothing, ends the session with a close
//! frame that says why.

use std::future::ready;
use std::io;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream};
use spdy::{Error, Frame, GoAwayStatus, Headers, Limits, MAX_PIECE, Session};
use streamapi::{Channels, Encoded, Received};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as Failure, Message};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

/// Largest message of a client.
const MESSAGE: usize = 1 << 20;
/// Bytes that are read, and those that are written, at once.
const BUFFER: usize = 32 << 10;

/// A channel that is a stream of the session from its beginning.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) channel: u8,
    /// What an SPDY client would send with the stream.
    pub(super) headers: Headers,
    /// The first message that the client gets on it.
    pub(super) greeting: Option<Vec<u8>>,
}

/// A session over channels.
pub(super) async fn session<T>(
    transport: T,
    channels: Channels,
    openings: Vec<Opening>,
    limits: Limits,
) -> Session
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sink, source) = over(transport).await.split();
    let (streams, mut greetings): (Vec<_>, Vec<_>) = openings.into_iter().map(opened).unzip();
    let contents = source.flat_map(move |message| stream::iter(frames(channels, message)));
    let output = sink.sink_map_err(failed).with_flat_map(move |frame| {
        let message = match frame {
            Frame::SynReply { stream, .. } => {
                let place = greetings.iter().position(|(id, _)| *id == stream);
                let greeting = place.and_then(|place| greetings.swap_remove(place).1);
                greeting.map(|content| written(channels, stream, &content))
            }
            Frame::Data {
                stream, content, ..
            } if !content.is_empty() => Some(written(channels, stream, &content)),
            frame => ended(&frame),
        };
        stream::iter(message.map(Ok))
    });
    Session::over(stream::iter(streams).chain(contents), output, limits)
}

/// The bytes in binary messages.
pub(super) async fn tunnel<T>(transport: T) -> impl AsyncRead + AsyncWrite + Send + 'static
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sink, source) = over(transport).await.split();
    let source = source.filter_map(|message| {
        ready(match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(Message::Text(_)) => Some(Err(io::ErrorKind::InvalidData.into())),
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    });
    let sink = sink
        .sink_map_err(io::Error::other)
        .with(|bytes| ready(Ok::<_, io::Error>(Message::Binary(bytes))));
    let writer = SinkWriter::new(CopyToBytes::new(sink));
    tokio::io::join(StreamReader::new(source), writer)
}

async fn over<T: AsyncRead + AsyncWrite + Unpin>(transport: T) -> WebSocketStream<T> {
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_message_size(Some(MESSAGE))
        .max_frame_size(Some(MESSAGE));
    WebSocketStream::from_raw_socket(transport, Role::Server, Some(config)).await
}

/// Ids of streams are odd, and rise with the channels.
fn id(channel: u8) -> u32 {
    2 * u32::from(channel) + 1
}

type Greeting = (u32, Option<Vec<u8>>);

fn opened(opening: Opening) -> (Result<Frame, Error>, Greeting) {
    let stream = id(opening.channel);
    let frame = Frame::SynStream {
        stream,
        fin: false,
        headers: opening.headers,
    };
    (Ok(frame), (stream, opening.greeting))
}

/// What a message of the client is, in pieces.
fn frames(channels: Channels, message: Result<Message, Failure>) -> Vec<Result<Frame, Error>> {
    let message = match message {
        Ok(Message::Binary(bytes)) => bytes,
        Ok(Message::Text(text)) => text.into(),
        // tungstenite answers pings and the end.
        Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_)) => {
            return Vec::new();
        }
        Err(error) => return vec![Err(failed(error))],
    };
    let data = |channel, fin, content| {
        Ok(Frame::Data {
            stream: id(channel),
            fin,
            content,
        })
    };
    match channels.read(message) {
        Ok(Received::Content(channel, mut content)) => {
            let mut pieces = Vec::new();
            while !content.is_empty() {
                let piece = content.split_to(content.len().min(MAX_PIECE));
                pieces.push(data(channel, false, piece));
            }
            pieces
        }
        Ok(Received::Close(channel)) => vec![data(channel, true, Bytes::new())],
        Ok(Received::Empty) => Vec::new(),
        Err(malformed) => vec![Err(Error::Malformed(malformed.0))],
    }
}

fn written(channels: Channels, stream: u32, content: &[u8]) -> Message {
    // Streams have the ids of channels.
    let channel = u8::try_from(stream / 2).unwrap_or(u8::MAX);
    match channels.write(channel, content) {
        Encoded::Binary(bytes) => Message::Binary(bytes),
        Encoded::Text(text) => Message::Text(text.into()),
    }
}

/// The close frame, if this frame ends the session. Clients have no message for the end of a
/// stream of the server.
fn ended(frame: &Frame) -> Option<Message> {
    let (code, reason) = match frame {
        Frame::GoAway {
            status: GoAwayStatus::OK,
            ..
        } => (CloseCode::Normal, ""),
        Frame::GoAway { .. } => (CloseCode::Protocol, "malformed or too large a message"),
        Frame::Reset { .. } => (CloseCode::Policy, "what this channel carries is not read"),
        _ => return None,
    };
    Some(Message::Close(Some(CloseFrame {
        code,
        reason: reason.into(),
    })))
}

fn failed(error: Failure) -> Error {
    match error {
        Failure::Capacity(_) => Error::TooLarge("message"),
        Failure::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Error::Cut,
        Failure::Protocol(_) | Failure::Utf8(_) => Error::Malformed("message"),
        Failure::Io(error) => Error::Io(error),
        other => Error::Io(io::Error::other(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_channel_that_is_not_read_ends_the_session() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let channels = Channels {
            coding: streamapi::Coding::Binary,
            has_close: true,
        };
        let opening = Opening {
            channel: 0,
            headers: Headers::new(),
            greeting: None,
        };
        let limits = Limits::default();
        let mut session = session(far, channels, vec![opening], limits).await;
        let _unread = session.accept().await.unwrap().unwrap();
        let mut client = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
        let message = Message::Binary(vec![0; MAX_PIECE].into());
        for _ in 0..=limits.buffer / MAX_PIECE + 1 {
            client.send(message.clone()).await.unwrap();
        }
        // Time passes when nothing else can happen.
        let Some(Ok(Message::Close(Some(close)))) = client.next().await else {
            panic!("no close frame");
        };
        assert_eq!(close.code, CloseCode::Policy);
    }
}
