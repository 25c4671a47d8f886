//! `node upload-image`: gives a file from standard input to the daemon of this node, for `image
//! upload`.
//!
//! Invariant: the client sends bytes once it knows where they begin; what is written to standard
//! output are lines, at least every few seconds.
//! Failure: a sentence, and exit code [`AGAIN`] where another attempt may succeed.

use std::future::Future;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use nodeapi::v1::upload_event::Event;
use nodeapi::v1::upload_request::Part;
use nodeapi::v1::{UploadBegin, UploadEvent, UploadRequest, UploadedImage};
use nodeapi::{Deadlines, client, connect};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::node_export::Failure;
use super::transfer::AGAIN;
use super::transfer::line::Line;

/// Bytes of a message.
const PIECE: usize = 512 << 10;

/// How often a line is written while bytes come.
const REPORT: Duration = Duration::from_secs(5);

/// File that follows on standard input.
#[derive(Debug, Args)]
pub(crate) struct NodeUploadArgs {
    /// Name of the image on the node.
    #[arg(value_name = "NAME")]
    name: String,
    /// Bytes of the file.
    #[arg(long, value_name = "BYTES")]
    size: u64,
    /// Checksum of the file.
    #[arg(long, value_name = "SHA256")]
    sha256: String,
    /// Socket of the daemon's node API.
    #[arg(long, value_name = "SOCKET", default_value = client::DEFAULT_ENDPOINT)]
    node_endpoint: String,
}

pub(crate) async fn run(args: &NodeUploadArgs) -> anyhow::Result<ExitCode> {
    match upload(args).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) if failure.is_passing() => {
            eprintln!("error: {:#}", anyhow::Error::from(failure));
            Ok(ExitCode::from(AGAIN))
        }
        Err(failure) => Err(failure.into()),
    }
}

async fn upload(args: &NodeUploadArgs) -> Result<(), Failure> {
    let mut daemon = connect(&args.node_endpoint, Deadlines::default())
        .map_err(|error| Failure::Daemon(Status::invalid_argument(error.to_string())))?;
    let (parts, requests) = mpsc::channel(2);
    let begin = Part::Begin(UploadBegin {
        name: args.name.clone(),
        size_bytes: args.size,
        sha256: args.sha256.clone(),
    });
    let closed = |_| Failure::Daemon(Status::unknown("the connection is closed"));
    let begun = parts.send(UploadRequest { part: Some(begin) }).await;
    begun.map_err(closed)?;
    let events = daemon.upload_image(ReceiverStream::new(requests)).await;
    let mut events = events.map_err(Failure::Daemon)?.into_inner();
    let offset = match first(&mut events).await? {
        First::Offset(offset) => offset,
        First::Image(image) => {
            say(&begin_at(args.size, args.size)).await?;
            return end(&image).await;
        }
    };
    say(&begin_at(args.size, offset)).await?;
    let missing = args.size.saturating_sub(offset);
    let mut input = tokio::io::stdin().take(missing);
    let sending = send(&mut input, &parts);
    let image = exchange(sending, answer(&mut events), missing).await?;
    end(&image).await
}

/// Sends what is missing until the daemon has answered. Its answer comes before what sending led to: it
/// says why a daemon takes no more.
async fn exchange(
    sending: impl Future<Output = Result<Sent, Failure>>,
    answered: impl Future<Output = Result<UploadedImage, Failure>>,
    missing: u64,
) -> Result<UploadedImage, Failure> {
    let mut sending = pin!(sending);
    let mut answered = pin!(answered);
    let mut reports = interval(REPORT);
    reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_sent = false;
    loop {
        tokio::select! {
            biased;
            image = &mut answered => return image,
            sent = &mut sending, if !is_sent => {
                is_sent = true;
                match sent? {
                    Sent::All(bytes) if bytes < missing => {
                        // The client has left; the daemon keeps what it has.
                        return Err(Failure::Daemon(Status::cancelled("the client has left")));
                    }
                    Sent::All(_) | Sent::Refused => {}
                }
            }
            _ = reports.tick() => say(&Line::Preparing(0)).await?,
        }
    }
}

/// How sending has ended.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    /// So many bytes were the input.
    All(u64),
    /// The daemon takes no more, and says why.
    Refused,
}

enum First {
    Offset(u64),
    Image(UploadedImage),
}

/// Where the bytes begin, or the image that is there already.
async fn first(events: &mut Streaming<UploadEvent>) -> Result<First, Failure> {
    loop {
        match next(events).await? {
            Event::Offset(offset) => return Ok(First::Offset(offset)),
            Event::Image(image) => return Ok(First::Image(image)),
            Event::Checking(_) => say(&Line::Preparing(0)).await?,
        }
    }
}

/// What the daemon has made of the file.
async fn answer(events: &mut Streaming<UploadEvent>) -> Result<UploadedImage, Failure> {
    loop {
        if let Event::Image(image) = next(events).await? {
            return Ok(image);
        }
    }
}

async fn next(events: &mut Streaming<UploadEvent>) -> Result<Event, Failure> {
    loop {
        let event = events.message().await.map_err(Failure::Daemon)?;
        let ended = || Failure::Daemon(Status::unknown("the daemon has closed the connection"));
        if let Some(event) = event.ok_or_else(ended)?.event {
            return Ok(event);
        }
    }
}

/// Sends what comes.
async fn send(
    input: &mut (impl AsyncRead + Unpin),
    parts: &mpsc::Sender<UploadRequest>,
) -> Result<Sent, Failure> {
    let mut sent = 0;
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        let read = (&mut *input)
            .take(PIECE as u64)
            .read_to_end(&mut piece)
            .await;
        let count = read.map_err(Failure::Write)? as u64;
        if count == 0 {
            return Ok(Sent::All(sent));
        }
        let part = Some(Part::Data(piece));
        if parts.send(UploadRequest { part }).await.is_err() {
            return Ok(Sent::Refused);
        }
        sent += count;
    }
}

const fn begin_at(size: u64, offset: u64) -> Line {
    Line::Begin { size, offset }
}

async fn end(image: &UploadedImage) -> Result<(), Failure> {
    let sha256 = image.sha256.clone();
    say(&Line::End { sha256 }).await
}

async fn say(line: &Line) -> Result<(), Failure> {
    let text = line.text().map_err(Failure::Write)?;
    let mut out = tokio::io::stdout();
    let written = async {
        out.write_all(text.as_bytes()).await?;
        out.flush().await
    };
    written.await.map_err(Failure::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_of_the_input_is_sent_in_pieces() {
        let (parts, mut requests) = mpsc::channel(16);
        let bytes = vec![7; 3 * PIECE + 5];
        let sent = send(&mut &bytes[..], &parts).await.unwrap();
        drop(parts);
        assert_eq!(sent, Sent::All(bytes.len() as u64));
        let mut all = Vec::new();
        while let Some(request) = requests.recv().await {
            let Some(Part::Data(data)) = request.part else {
                panic!("data");
            };
            assert!(data.len() <= PIECE);
            all.extend(data);
        }
        assert_eq!(all, bytes);
    }

    #[tokio::test]
    async fn the_reason_of_the_daemon_counts_and_not_what_could_not_be_sent() {
        let (parts, requests) = mpsc::channel(1);
        drop(requests);
        let sent = send(&mut &b"more"[..], &parts).await.unwrap();
        assert_eq!(sent, Sent::Refused);

        let full = || async { Err(Failure::Daemon(Status::resource_exhausted("it is full"))) };
        for sent in [Sent::Refused, Sent::All(1)] {
            let failed = exchange(async { Ok(sent) }, full(), 4).await;
            assert_eq!(failed.unwrap_err().to_string(), "it is full");
        }
        // The answer comes after the end of the channel.
        let later = async {
            tokio::task::yield_now().await;
            full().await
        };
        let failed = exchange(async { Ok(Sent::Refused) }, later, 4).await;
        assert_eq!(failed.unwrap_err().to_string(), "it is full");
        let cut = exchange(async { Ok(Sent::All(1)) }, std::future::pending(), 4).await;
        assert_eq!(cut.unwrap_err().to_string(), "the client has left");
    }
}
