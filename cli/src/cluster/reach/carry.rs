//! One connection: messages of WebSocket with the number of a channel, and two streams of bytes here.
//!
//! ```text
//! from ─► [0, bytes…] ─► API server ─► kubelet ─► daemon ─► guest
//! to   ◄─ [data channel, bytes…] ◄──────────────────────────┘
//! ```
//!
//! Invariant: bytes pass unchanged and in order, each direction as fast as its reader. A connection on which
//! nothing arrives for [`SILENCE`], not even the answer to a ping, is lost. The reader gets an end only when the
//! other side has ended the connection without a reason.
//! Failure: [`Broken`]; an end that the other side gives a reason for is [`Ended::Failed`].

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::client::Connection;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as Failure, Message};

use crate::table::printable;

/// Time between pings.
const PING: Duration = Duration::from_secs(20);
/// Time without any message after which a connection is lost.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes that are read at once.
const PIECE: usize = 16 * 1024;
/// Most characters of a reason.
const WORDS: usize = 1000;

/// The channel of what is sent.
const INPUT: u8 = 0;
/// Before the number of a channel whose content ends.
const CLOSE: u8 = 255;

/// What the channels of a connection carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// A console: 0 keys, 1 output, 3 the result as JSON.
    Console,
    /// A TCP connection: 0 both ways, 1 errors as text. The first message of each is the port.
    Port,
}

/// How a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Closed,
    /// By the end of the input of a console, all of which was sent.
    Left,
    /// With these words.
    Failed(String),
}

/// A connection that broke.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the connection to the API server was cut")]
    Cut(#[source] Failure),
    #[error("nothing has arrived from the API server for {} s", SILENCE.as_secs())]
    Silent,
    /// From a node of an earlier version.
    #[error(
        "the input has ended and nothing has arrived from the guest for {} s; programs of an earlier version on its \
         node do not pass on the end of the input",
        SILENCE.as_secs()
    )]
    Unanswered,
    /// On this computer.
    #[error("failed to pass on what the guest sends")]
    Write(#[source] io::Error),
    #[error("failed to read what is to be sent")]
    Read(#[source] io::Error),
}

/// Carries a connection until the other side ends it. The end of `from` ends the guest's input alone, where the
/// node has that; a console is left by it.
pub(crate) async fn carry(
    connection: Connection,
    line: Line,
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
) -> Result<Ended, Broken> {
    let has_close = connection.supports_stream_close();
    let (sink, source) = connection.into_stream().split();
    carried(sink, source, line, has_close, from, to).await
}

async fn carried(
    mut sink: impl Sink<Message, Error = Failure> + Unpin,
    source: impl Stream<Item = Result<Message, Failure>> + Unpin,
    line: Line,
    has_close: bool,
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
) -> Result<Ended, Broken> {
    let progress = Progress::default();
    let up = async {
        send(&mut sink, line, has_close, from, &progress).await?;
        Ok(Ended::Left)
    };
    let ended = tokio::select! {
        ended = receive(source, line, to, &progress) => ended,
        left = up => left,
        () = progress.unanswered() => Err(Broken::Unanswered),
    };
    // The other side may be gone.
    let _ = timeout(PING, sink.close()).await;
    ended
}

/// What the two directions know of each other.
#[derive(Debug, Default)]
struct Progress {
    /// The input has ended, and the node has no message for that.
    input_ended: watch::Sender<bool>,
    /// Changes with all content that arrives.
    content: watch::Sender<()>,
}

impl Progress {
    /// Ends some time after the input has; begins again with all content.
    async fn unanswered(&self) {
        let mut input_ended = self.input_ended.subscribe();
        // The sender lives as long as this.
        let _ = input_ended.wait_for(|ended| *ended).await;
        let mut content = self.content.subscribe();
        while timeout(SILENCE, content.changed()).await.is_ok() {}
    }
}

/// Sends what is read, and pings. Ends only when the input cannot be read, or when a console is left.
async fn send(
    sink: &mut (impl Sink<Message, Error = Failure> + Unpin),
    line: Line,
    has_close: bool,
    mut from: impl AsyncRead + Unpin,
    progress: &Progress,
) -> Result<(), Broken> {
    let mut piece = vec![0; PIECE];
    let mut pings = interval(PING);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings.reset();
    let mut is_open = true;
    loop {
        let message = tokio::select! {
            read = from.read(&mut piece), if is_open => match read.map_err(Broken::Read)? {
                0 if line == Line::Console => return Ok(()),
                0 => {
                    is_open = false;
                    if !has_close {
                        progress.input_ended.send_replace(true);
                        continue;
                    }
                    Message::binary(vec![CLOSE, INPUT])
                }
                length => Message::binary([&[INPUT][..], &piece[..length]].concat()),
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        if sink.send(message).await.is_err() {
            // The reader of messages learns why the connection ends.
            return std::future::pending().await;
        }
    }
}

/// Writes what arrives, until the other side ends the connection.
async fn receive(
    mut source: impl Stream<Item = Result<Message, Failure>> + Unpin,
    line: Line,
    mut to: impl AsyncWrite + Unpin,
    progress: &Progress,
) -> Result<Ended, Broken> {
    let mut greetings = match line {
        Line::Console => Vec::new(),
        Line::Port => vec![0, 1],
    };
    let mut reason = None;
    loop {
        let message = timeout(SILENCE, source.next()).await;
        let message = match message.map_err(|_| Broken::Silent)? {
            Some(Ok(message)) => message,
            Some(Err(Failure::ConnectionClosed)) | None => break,
            Some(Err(error)) => return reason.map(Ended::Failed).ok_or(Broken::Cut(error)),
        };
        let mut content = match message {
            Message::Binary(content) => content,
            Message::Close(frame) => {
                let frame = frame.filter(|frame| frame.code != CloseCode::Normal);
                reason = reason.or(frame.as_ref().map(closed));
                break;
            }
            _ => continue,
        };
        if content.is_empty() {
            continue;
        }
        let channel = content.split_to(1)[0];
        if let Some(at) = greetings.iter().position(|one| *one == channel) {
            greetings.swap_remove(at);
            continue;
        }
        match (line, channel) {
            (Line::Console, 1) | (Line::Port, 0) => {
                progress.content.send_replace(());
                to.write_all(&content).await.map_err(Broken::Write)?;
                to.flush().await.map_err(Broken::Write)?;
            }
            (Line::Console, 3) => reason = result(&content),
            (Line::Port, 1) => reason = Some(words(&content)),
            _ => {}
        }
    }
    if let Some(words) = reason {
        return Ok(Ended::Failed(words));
    }
    // The reader may have gone already.
    let _ = to.shutdown().await;
    Ok(Ended::Closed)
}

/// Why the other side has closed a connection.
fn closed(frame: &CloseFrame) -> String {
    match words(frame.reason.as_bytes()) {
        words if words.is_empty() => format!("it was closed with code {}", u16::from(frame.code)),
        words => words,
    }
}

/// Why a console has ended; none: as it should.
fn result(content: &[u8]) -> Option<String> {
    let Ok(status) = serde_json::from_slice::<Status>(content) else {
        return Some(words(content));
    };
    let message = status.message.unwrap_or_default();
    (status.status.as_deref() != Some("Success")).then(|| words(message.as_bytes()))
}

/// The beginning of a text, without what a terminal would obey.
fn words(text: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(text).chars().take(WORDS).collect();
    printable(text.trim())
}

#[cfg(test)]
mod tests;
